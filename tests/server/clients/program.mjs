// What NATS's own client for Node sees of a server: one line of JSON for each step.
import { connect, headers } from "@nats-io/transport-node";
import { jetstream, jetstreamManager, AckPolicy, DeliverPolicy, RetentionPolicy, StorageType } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";

const [host, user] = process.argv.slice(2);
const nc = await connect({ servers: host, ...(user ? { user, pass: "p" } : {}), timeout: 10000 });
const tell = (step, value) => console.log(JSON.stringify({ step, value }));
const text = new TextEncoder();

async function refused(work) {
  try {
    return { done: await work() };
  } catch (error) {
    return { name: error.name, code: error.code, text: error.message };
  }
}

async function core() {
  const heard = [];
  const all = nc.subscribe("a.>", { callback: (_, m) => heard.push([m.subject, m.string(), m.headers?.get("k") ?? ""]) });
  const crew = [0, 0];
  for (const n of [0, 1]) nc.subscribe("work", { queue: "crew", callback: () => (crew[n] += 1) });
  nc.subscribe("echo", { callback: (_, m) => m.respond(m.data, { headers: m.headers }) });
  await nc.flush();
  const block = headers();
  block.append("k", "v");
  nc.publish("a.b", "one");
  nc.publish("a.b.c", text.encode("two"), { headers: block });
  for (let n = 0; n < 10; n++) nc.publish("work", `${n}`);
  await nc.flush();
  const echoed = await nc.request("echo", "hi", { timeout: 5000, headers: block });
  tell("core", [heard, crew[0] + crew[1], echoed.string(), echoed.headers.get("k")]);
  tell("nobody", (await refused(() => nc.request("nobody", "", { timeout: 5000 }))).name);
  all.unsubscribe();
  const many = [];
  for await (const m of await nc.requestMany("echo", "x", { maxMessages: 1, maxWait: 5000 })) many.push(m.string());
  tell("many", many);
}

async function streams() {
  const jsm = await jetstreamManager(nc);
  const made = await jsm.streams.add({
    name: "S", subjects: ["s.>"], retention: RetentionPolicy.Limits, storage: StorageType.File,
    allow_direct: true, allow_rollup_hdrs: true, allow_msg_ttl: true,
  });
  tell("made", [made.config.name, made.config.subjects, made.state.messages, made.config.num_replicas]);
  const js = jetstream(nc);
  for (let n = 1; n <= 20; n++) {
    const ack = await js.publish(`s.${n % 3}`, `m${n}`, { msgID: `id${n}` });
    if (n % 10 === 0) tell("ack", [ack.stream, ack.seq, ack.duplicate]);
  }
  tell("duplicate", (await js.publish("s.1", "m1", { msgID: "id1" })).duplicate);
  tell("expected", await refused(() => js.publish("s.1", "x", { expect: { lastSequence: 3 } })));
  tell("elsewhere", (await refused(() => js.publish("nowhere", "x"))).name);
  const stored = await jsm.streams.getMessage("S", { last_by_subj: "s.2" });
  tell("stored", [stored.seq, stored.string()]);
  const direct = await jsm.direct.getMessage("S", { seq: 7 });
  tell("direct", [direct.seq, direct.subject, direct.string()]);
  tell("info", (await jsm.streams.info("S", { subjects_filter: ">" })).state.subjects);
  tell("purged", (await jsm.streams.purge("S", { filter: "s.0" })).purged);
  tell("deleted", await jsm.streams.deleteMessage("S", 1));
  tell("missing", await refused(() => jsm.streams.info("NO")));
  tell("overlap", await refused(() => jsm.streams.add({ name: "T", subjects: ["s.1"] })));
  tell("account", (await jsm.getAccountInfo()).streams);
}

async function consumers() {
  const jsm = await jetstreamManager(nc);
  const js = jetstream(nc);
  await jsm.consumers.add("S", { durable_name: "c", ack_policy: AckPolicy.Explicit, filter_subject: "s.1", max_deliver: 5 });
  const consumer = await js.consumers.get("S", "c");
  const seen = [];
  for await (const m of await consumer.fetch({ max_messages: 4, expires: 5000 })) {
    seen.push([m.seq, m.subject, m.string(), m.info.deliveryCount]);
    if (seen.length === 2) m.nak(); else if (seen.length === 3) m.term("no"); else await m.ackAck();
  }
  await nc.flush();
  tell("fetched", seen);
  const rest = [];
  for await (const m of await consumer.consume({ max_messages: 10 })) {
    m.working();
    rest.push([m.seq, m.info.deliveryCount]);
    await m.ackAck();
    if (m.info.pending === 0 && rest.length >= 3) break;
  }
  tell("consumed", rest.sort((a, b) => a[0] - b[0]));
  tell("none", await consumer.next({ expires: 1000 }));
  const info = await consumer.info();
  tell("consumer", [info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq, info.config.max_deliver]);
  const ordered = await js.consumers.get("S", { deliver_policy: DeliverPolicy.All });
  const order = [];
  for await (const m of await ordered.fetch({ max_messages: 12, expires: 3000 })) order.push(m.seq);
  tell("ordered", order);
  tell("names", (await jsm.consumers.list("S").next()).map((one) => one.name).filter((name) => name === "c"));
  tell("gone", await jsm.consumers.delete("S", "c"));
}

async function buckets() {
  const kv = await new Kvm(nc).create("settings", { history: 5 });
  const watched = [];
  const watch = await kv.watch();
  const watching = (async () => {
    for await (const e of watch) if (watched.push([e.key, e.operation, e.string()]) >= 5) break;
  })();
  const first = await kv.put("color", "red");
  const second = await kv.update("color", "blue", first);
  tell("stale", (await refused(() => kv.update("color", "green", first))).code);
  tell("again", (await refused(() => kv.create("color", "x"))).name);
  await kv.put("size", "9");
  await kv.delete("size");
  await kv.create("size", "10");
  const entry = await kv.get("color");
  tell("entry", [first, second, entry.string(), entry.revision, await kv.get("nothing")]);
  const history = [];
  for await (const e of await kv.history({ key: "size" })) history.push([e.operation, e.string()]);
  const keys = [];
  for await (const key of await kv.keys()) keys.push(key);
  await watching;
  await kv.purge("color");
  const status = await kv.status();
  tell("bucket", [history, keys.sort(), watched, status.values, status.history]);
}

async function objects() {
  const os = await new Objm(nc).create("files");
  const data = text.encode("0123456789".repeat(40000));
  const info = await os.putBlob({ name: "big", options: { max_chunk_size: 65536 } }, data);
  const back = await os.getBlob("big");
  tell("object", [info.size, info.chunks, info.digest, back.length, (await os.list()).map((one) => one.name)]);
  tell("object gone", [(await os.delete("big")).success, await os.getBlob("big")]);
}

for (const part of [core, streams, consumers, buckets, objects]) await part();
await nc.drain();
