// Drives a broker through kafkajs: `node conformance.mjs BOOTSTRAP [SCENARIO]...` runs these scenarios, or all, at the same
// time, and prints `NAME ok` or `NAME failed: REASON` for each. `node conformance.mjs list` prints the names.
import { isDeepStrictEqual } from 'node:util'
import kafkajs from 'kafkajs'

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = kafkajs
process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
const [bootstrap, ...wanted] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'conformance', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 8 } })
let topicCount = 0
const topicName = prefix => `${prefix}-js-${Date.now()}-${process.pid}-${topicCount++}`
const numbers = (start, end) => Array.from({ length: end - start }, (_, i) => String(start + i))

const same = (what, got, want) => {
  if (!isDeepStrictEqual(got, want)) throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`)
}

const until = async (what, condition, seconds = 40) => {
  const deadline = Date.now() + seconds * 1000
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`${what}: not within ${seconds} s`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

const withAdmin = async work => {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

// Apache Kafka answers for what it has decided before it shows it.
const untilPartitions = (admin, topic, count) => until(`${count} partitions`, async () => {
  try {
    const { topics: [{ partitions }] } = await admin.fetchTopicMetadata({ topics: [topic] })
    return partitions.length === count && partitions.every(({ leader }) => leader >= 0)
  } catch (error) {
    if (error.type !== 'UNKNOWN_TOPIC_OR_PARTITION' && error.type !== 'LEADER_NOT_AVAILABLE') throw error
    return false
  }
})

const fresh = async (prefix, numPartitions = 1) => {
  const topic = topicName(prefix)
  await withAdmin(async admin => {
    await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: -1 }], waitForLeaders: false })
    await untilPartitions(admin, topic, numPartitions)
  })
  return topic
}

const produce = async (topic, messages, { producer: options = {}, send = {} } = {}) => {
  const producer = kafka.producer(options)
  await producer.connect()
  try {
    return await producer.send({ topic, messages, ...send })
  } finally {
    await producer.disconnect()
  }
}

const consume = async (topic, groupId, sink, options = {}) => {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 300, rebalanceTimeout: 10000, ...options })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommitInterval: 100,
    eachMessage: async ({ partition, message }) => sink.push({ partition, ...message, value: message.value?.toString() ?? null }),
  })
  return consumer
}

const readAll = async (topic, count, options = {}) => {
  const got = []
  const consumer = await consume(topic, `read-${topicName('g')}`, got, options)
  try {
    await until(`${count} records of ${topic}, ${got.length} came`, () => got.length >= count)
  } finally {
    await consumer.disconnect()
  }
  return got
}

const scenarios = {
  async produce_and_consume() {
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      for (const acks of [-1, 1]) {
        const topic = await fresh('plain')
        await produce(topic, numbers(0, 50).map(value => ({ value })), { send: { compression, acks } })
        same(`codec ${compression}, acks ${acks}`, (await readAll(topic, 50)).map(m => m.value), numbers(0, 50))
      }
    }
  },

  async headers_and_nulls() {
    const topic = await fresh('headers')
    await produce(topic, [{ key: null, value: null, headers: { a: '1', b: ['2', '3'] } }, { key: 'k', value: '' }])
    const [first, second] = await readAll(topic, 2)
    same('null value', first.value, null)
    same('null key', first.key, null)
    same('headers', [first.headers.a.toString(), first.headers.b.map(String)], ['1', ['2', '3']])
    same('empty value', second.value, '')
  },

  async group_takes_over() {
    const topic = await fresh('group', 3)
    const groupId = `take-${topic}`
    const [one, two] = [[], []]
    const first = await consume(topic, groupId, one)
    const second = await consume(topic, groupId, two)
    await withAdmin(admin => until('two members', async () => {
      const { groups: [group] } = await admin.describeGroups([groupId])
      return group.state === 'Stable' && group.members.length === 2
    }))
    const spread = numbers(0, 30).map((value, i) => ({ value, partition: i % 3 }))
    await produce(topic, spread)
    await until('30 records in both', () => one.length + two.length >= 30)
    await second.disconnect()
    const before = one.length
    await produce(topic, spread)
    await until('30 records in the member left', () => one.length >= before + 30)
    same('partitions of the member left', [...new Set(one.slice(before).map(m => m.partition))].sort(), [0, 1, 2])
    await first.disconnect()
  },

  async resumes_where_it_was() {
    const topic = await fresh('resume')
    const groupId = `resume-${topic}`
    await produce(topic, numbers(0, 10).map(value => ({ value })))
    const got = []
    const first = await consume(topic, groupId, got)
    await until('ten records', () => got.length === 10)
    await first.disconnect()
    await produce(topic, numbers(10, 20).map(value => ({ value })))
    const second = await consume(topic, groupId, got)
    await until('twenty records', () => got.length >= 20)
    await second.disconnect()
    same('each once', got.map(m => m.value), numbers(0, 20))
    const offsets = await withAdmin(admin => admin.fetchOffsets({ groupId, topics: [topic] }))
    same('committed', offsets[0].partitions[0].offset, '20')
  },

  async idempotent() {
    const topic = await fresh('idempotent')
    await produce(topic, numbers(0, 20).map(value => ({ value })), { producer: { idempotent: true, maxInFlightRequests: 1 } })
    same('values', (await readAll(topic, 20)).map(m => m.value), numbers(0, 20))
  },

  async transactions() {
    const topic = await fresh('txn')
    const producer = kafka.producer({ idempotent: true, transactionalId: `t-${topic}`, maxInFlightRequests: 1 })
    await producer.connect()
    for (const [round, commit] of [true, false, true].entries()) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, messages: numbers(round * 5, round * 5 + 5).map(value => ({ value })) })
      await (commit ? transaction.commit() : transaction.abort())
    }
    await producer.disconnect()
    const committed = await readAll(topic, 10)
    same('committed', committed.map(m => m.value), [...numbers(0, 5), ...numbers(10, 15)])
    const everything = await readAll(topic, 15, { readUncommitted: true })
    same('everything', everything.map(m => m.value), numbers(0, 15))
  },

  async offsets_for_times() {
    const topic = await fresh('times')
    const base = Math.floor(Date.now() / 1000) * 1000 - 3_600_000
    for (let i = 0; i < 5; i++) await produce(topic, [{ value: String(i), timestamp: String(base + i * 1000) }])
    for (const [timestamp, offset] of [[base, '0'], [base + 2000, '2'], [base + 2001, '3'], [base + 10_000, '5']]) {
      const [found] = await withAdmin(admin => admin.fetchTopicOffsetsByTimestamp(topic, timestamp))
      same(`${timestamp - base} ms later`, found.offset, offset)
    }
  },

  async admin() {
    const topic = await fresh('admin', 2)
    await withAdmin(async admin => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
      await untilPartitions(admin, topic, 4)
      await admin.alterConfigs({
        validateOnly: false,
        resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name: 'retention.ms', value: '54321' }] }],
      })
      await until('the changed retention.ms', async () => {
        const { resources } = await admin.describeConfigs({
          includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['retention.ms'] }],
        })
        return resources[0].configEntries[0].configValue === '54321'
      })
      const cluster = await admin.describeCluster()
      same('brokers', cluster.brokers.length, Number(process.env.HAILBUS_TEST_NODES ?? 1))
      await admin.deleteTopics({ topics: [topic] })
      await until('the topic is gone', async () => !(await admin.listTopics()).includes(topic))
    })
  },
}

const names = wanted.length ? wanted : Object.keys(scenarios).sort()
if (bootstrap === 'list') {
  console.log(names.join('\n'))
} else if (!bootstrap || !names.every(name => scenarios[name])) {
  console.log('usage: node conformance.mjs BOOTSTRAP [SCENARIO]... | node conformance.mjs list')
  process.exit(2)
} else {
  await Promise.all(names.map(async name => {
    try {
      await scenarios[name]()
      console.log(`${name} ok`)
    } catch (error) {
      console.log(`${name} failed: ${String(error.message).replaceAll('\n', ' ')}`)
    }
  }))
  process.exit(0)
}
