"""The quorum that agrees on the metadata log: KRaft (KIP-595, KIP-996, KIP-853), without I/O."""
