// KafkaJS: a line of JSON in, a line of JSON out, as peer.py says. NODE_PATH must have kafkajs, kafkajs-snappy,
// lz4-napi and zstd-codec. KafkaJS has no codecs but gzip of its own.
const { existsSync } = require('fs');
const { createInterface } = require('readline');
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs');
const lz4 = require('lz4-napi');
const snappy = require('kafkajs-snappy');
const { ZstdCodec } = require('zstd-codec');

const SECONDS = 30;
const zstd = new Promise((resolve) => ZstdCodec.run((codec) => resolve(new codec.Streaming())));
CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: async (buffer) => lz4.decompressFrame(buffer),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
});

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const text = (buffer) => (buffer === null || buffer === undefined ? null : Buffer.from(buffer).toString('base64'));
const data = (value) => (value === null ? null : Buffer.from(value, 'base64'));
const client = (asked) => new Kafka({ clientId: 'peer', brokers: [asked.server], logLevel: logLevel.NOTHING });

// Headers of one name are an array in KafkaJS, in their order.
function row(topic, partition, message) {
  const headers = [];
  for (const [name, values] of Object.entries(message.headers ?? {})) {
    for (const value of Array.isArray(values) ? values : [values]) headers.push([name, text(value)]);
  }
  return [topic, partition, Number(message.offset), Number(message.timestamp), -1, text(message.key),
    text(message.value), headers];
}

// A consumer of KafkaJS is always a member of a group. It reads partitions from the beginning, or from an offset.
async function read(asked) {
  const options = asked.options ?? {};
  const places = new Map();
  for (const [topic, partition] of asked.places) places.set(topic, [...(places.get(topic) ?? []), partition]);
  const records = [];
  const consumer = client(asked).consumer({
    groupId: `read-${process.pid}-${process.hrtime.bigint()}`,
    readUncommitted: options['isolation.level'] !== 'read_committed',
    maxWaitTimeInMs: 100,
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [...places.keys()], fromBeginning: true });
  let failed = null;
  consumer.on(consumer.events.CRASH, (event) => { failed = event.payload.error; });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => { records.push(row(topic, partition, message)); },
  });
  if (asked.from !== undefined && asked.from !== null) {
    for (const [topic, partition] of asked.places) consumer.seek({ topic, partition, offset: String(asked.from) });
  }
  const until = Date.now() + SECONDS * 1000;
  while (records.length < asked.count && Date.now() < until && failed === null) await sleep(50);
  await sleep(500);
  await consumer.disconnect();
  if (failed !== null) throw failed;
  return { records };
}

// A member of a group reads until a number of records, seconds or the file `stop`, commits and leaves.
async function join(asked) {
  const options = asked.options ?? {};
  const records = [];
  const next = new Map();
  const consumer = client(asked).consumer({
    groupId: options['group.id'],
    sessionTimeout: Number(options['session.timeout.ms'] ?? 30000),
    heartbeatInterval: 1000,
    maxWaitTimeInMs: 100,
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [asked.topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      if (records.length >= asked.count) return;
      records.push(row(topic, partition, message));
      next.set(partition, Number(message.offset) + 1);
    },
  });
  const until = Date.now() + (asked.seconds ?? SECONDS) * 1000;
  while (records.length < asked.count && Date.now() < until && !(asked.stop && existsSync(asked.stop))) await sleep(50);
  const offsets = [...next].map(([partition, offset]) => ({ topic: asked.topic, partition, offset: String(offset) }));
  if (offsets.length) await consumer.commitOffsets(offsets);
  await consumer.disconnect();
  return { records };
}

async function offsets(asked) {
  const admin = client(asked).admin();
  await admin.connect();
  const rows = [];
  for (const [topic, partition] of asked.places) {
    const bounds = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
    const found = [Number(bounds.low), Number(bounds.high)];
    for (const time of asked.times ?? []) {
      const hits = await admin.fetchTopicOffsetsByTimestamp(topic, time);
      found.push(Number(hits.find((one) => one.partition === partition).offset));
    }
    rows.push(found);
  }
  await admin.disconnect();
  return { offsets: rows };
}

function message([partition, time, key, value, headers]) {
  const named = {};
  for (const [name, header] of headers) {
    const value = data(header);
    named[name] = name in named ? [].concat(named[name], [value]) : value;
  }
  return { partition, timestamp: String(time), key: data(key), value: data(value), headers: named };
}

// One request per partition and about 200 records, so that the order and the base offsets give the offset of each.
async function produce(asked) {
  const options = asked.options ?? {};
  const codecs = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 };
  const producer = client(asked).producer({ idempotent: options['enable.idempotence'] === 'true' });
  await producer.connect();
  const placed = [];
  for (let begin = 0; begin < asked.records.length; begin += 200) {
    const part = asked.records.slice(begin, begin + 200);
    const answers = await producer.send({
      topic: asked.topic,
      acks: { 0: 0, 1: 1 }[options.acks] ?? -1,
      compression: codecs[options['compression.type'] ?? 'none'],
      messages: part.map(message),
    });
    const next = new Map((answers ?? []).map((one) => [one.partition, Number(one.baseOffset)]));
    for (const [partition] of part) {
      placed.push(next.get(partition) ?? -1);
      next.set(partition, (next.get(partition) ?? -2) + 1);
    }
  }
  await producer.disconnect();
  return { offsets: placed };
}

async function transact(asked) {
  const producer = client(asked).producer({
    transactionalId: asked.options['transactional.id'], idempotent: true, maxInFlightRequests: 1,
  });
  await producer.connect();
  for (const one of asked.transactions) {
    const transaction = await producer.transaction();
    const messages = one.values.map((value) => ({ partition: 0, value: data(value) }));
    if (messages.length) await transaction.send({ topic: asked.topic, messages });
    if (asked.group) {
      const partitions = [{ partition: 0, offset: String(one.offset) }];
      await transaction.sendOffsets({ consumerGroupId: asked.group, topics: [{ topic: asked.topic, partitions }] });
    }
    await (one.commit ? transaction.commit() : transaction.abort());
    await sleep(300); // KafkaJS does not wait while a broker writes markers.
  }
  await producer.disconnect();
  return {};
}

async function admin(asked) {
  const kafka = client(asked);
  const admin = kafka.admin();
  await admin.connect();
  const { topic, filled, group } = asked;
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const create = () => admin.createTopics({
    topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries: [{ name: 'retention.ms', value: '3600000' }] }],
  });
  const retention = async () => {
    const described = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] });
    return described.resources[0].configEntries[0].configValue;
  };
  const steps = {
    'create topic': create,
    'create topic again': create,
    'list topics': async () => (await admin.listTopics()).includes(topic),
    'describe topic': async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length,
    'describe configs': retention,
    'alter configs': () => admin.alterConfigs({
      resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '7200000' }] }],
    }).then(() => null),
    'altered config': retention,
    'create partitions': () => admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] }),
    'delete records': () => admin.deleteTopicRecords({ topic: filled, partitions: [{ partition: 0, offset: '3' }] }),
    'list offsets': async () => (await admin.fetchTopicOffsets(filled))[0].low,
    'list groups': async () => (await admin.listGroups()).groups.some((one) => one.groupId === group),
    'describe group': async () => (await admin.describeGroups([group])).groups[0].state,
    'group offsets': async () => (await admin.fetchOffsets({ groupId: group, topics: [filled] }))[0].partitions[0].offset,
    'set group offsets': () =>
      admin.setOffsets({ groupId: group, topic: filled, partitions: [{ partition: 0, offset: '5' }] }),
    'reset group offsets': () => admin.resetOffsets({ groupId: group, topic: filled, earliest: true }),
    'delete group': async () => (await admin.deleteGroups([group]))[0].errorCode,
    'describe cluster': async () => (await admin.describeCluster()).brokers.length,
    'delete topic': () => admin.deleteTopics({ topics: [topic] }),
    'delete topic again': () => admin.deleteTopics({ topics: [topic] }),
  };
  const answer = {};
  for (const [name, step] of Object.entries(steps)) {
    await sleep(300); // A broker applies changes after its response.
    try {
      answer[name] = (await step()) ?? null;
    } catch (error) {
      answer[name] = { error: error.type ?? error.name };
    }
  }
  await admin.disconnect();
  return { steps: answer };
}

const functions = { read, join, offsets, produce, transact, admin };

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    let answer;
    try {
      answer = await functions[asked.do](asked);
    } catch (error) {
      answer = { error: `${error.name}: ${error.message}` };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

main();
