"""The cluster's metadata: a log of records, and the image that they add up to."""
