// The peer's side of the line protocol, for Node programs; the same as benchmarks/peers/python/peer.py.
import { readFileSync } from "node:fs";
import readline from "node:readline";

const MARK = "@@";
export const BUSINESS_TABLE =
  "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL)";
export const BUSINESS_INSERT = { name: "business", text: "INSERT INTO business (note) VALUES ($1)" };
export const BUSINESS_NOTE = "an order of the business";
export const PREFETCH = 10; // messages that a broker has under way to a consumer
const PAYLOAD_BYTES = 256;
const PAD = "x".repeat(PAYLOAD_BYTES - JSON.stringify({ seq: 0, kind: "order.placed", pad: "" }).length + 1);

/** The event body: 256 bytes as compact JSON. */
export function payload(seq) {
  return { seq, kind: "order.placed", pad: PAD.slice(String(seq).length) };
}

/** The version of an installed package. */
export function installed(name) {
  const file = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(file, "utf8")).version;
}

export const now = () => process.hrtime.bigint();

/** Counts handled events; in latency mode also notes when each one came. */
export class Meter {
  count = 0;
  firstCount = 0;
  firstNs = 0n;
  lastNs = 0n;
  received = {};
  latency = false;

  many(bodies) {
    const at = now();
    if (this.latency) for (const body of bodies) this.received[body.seq] ??= Number(at);
    if (this.count === 0) {
      this.firstNs = at;
      this.firstCount = bodies.length;
    }
    this.count += bodies.length;
    this.lastNs = at;
  }

  one(body) {
    this.many([body]);
  }
}

const say = (message) => process.stdout.write(`${MARK}${JSON.stringify(message)}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function writeTx(peer, total, block) {
  const spent = { true: 0, false: 0 };
  for (const event of [false, true]) await peer.writeBlock(peer.take(20), 20, event);
  for (let turn = 0; turn < total / block; turn += 1) {
    for (const event of turn % 2 ? [false, true] : [true, false]) {
      const first = peer.take(block);
      const began = now();
      await peer.writeBlock(first, block, event);
      spent[event] += Number(now() - began) / 1e9;
    }
  }
  return { event_seconds: spent.true, bare_seconds: spent.false };
}

async function writeBatches(peer, batches, size) {
  const began = now();
  for (let i = 0; i < batches; i += 1) await peer.writeBatch(peer.take(size), size);
  return { seconds: Number(now() - began) / 1e9, began_ns: Number(began) };
}

async function produce(peer, rate, total) {
  const committed = {};
  const began = performance.now();
  for (let seq = 0; seq < total; seq += 1) {
    const pause = began + (seq * 1000) / rate - performance.now();
    if (pause > 0) await sleep(pause);
    await peer.writeBlock(seq, 1, true);
    committed[seq] = Number(now());
  }
  return { committed };
}

async function command(peer, name, args) {
  if (name === "setup") {
    Object.assign(peer, { url: args.url, workload: args.workload });
    await peer.setup(args.fresh);
    return { version: peer.version, settings: { ...peer.settings, node: process.version } };
  }
  if (name === "write_tx") return writeTx(peer, args.total, args.block);
  if (name === "write_batches") return writeBatches(peer, args.batches, args.size);
  if (name === "produce") return produce(peer, args.rate, args.total);
  if (name === "start") {
    peer.meter.latency = args.mode === "latency";
    await peer.start();
    return {};
  }
  if (name === "stop") {
    await peer.stop();
    const meter = peer.meter;
    return {
      count: meter.count,
      first_count: meter.firstCount,
      first_ns: Number(meter.firstNs),
      last_ns: Number(meter.lastNs),
      received: meter.received,
    };
  }
  return { unsupported: `unknown command ${name}` };
}

/** Answer commands on stdin until it closes. */
export async function serve(peer) {
  let next = 0;
  peer.meter = new Meter();
  peer.take = (count) => (next += count) - count;
  let said = 0;
  setInterval(() => {
    if (peer.meter.count !== said) say({ handled: (said = peer.meter.count) });
  }, 20).unref();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { command: name, ...args } = JSON.parse(line);
    try {
      say(await command(peer, name, args));
    } catch (error) {
      console.error(error);
      say({ error: `${error.name}: ${error.message}` });
    }
  }
  process.exit(0);
}
