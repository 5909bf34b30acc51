// pg-boss: send / insert with the caller's connection as `db`; work() with batches.
import pg from "pg";
import { PgBoss } from "pg-boss";
import { BUSINESS_INSERT, BUSINESS_NOTE, BUSINESS_TABLE, installed, payload, serve } from "./peer.mjs";

const QUEUE = "bench";
const BATCH = 1000;
const CONCURRENCY = 8;

serve({
  version: installed("pg-boss"),
  settings: {
    driver: "pg",
    batchSize: BATCH,
    localConcurrency: `drain: ${CONCURRENCY}; latency: 1`,
    burstWhenBatchFull: true,
    "wake-up": "useListenNotify and queue notify for latency, off for the rest",
    "batched write": "insert",
    payload: "decoded JSON",
  },

  async setup(fresh) {
    this.client = new pg.Client({ connectionString: this.url });
    await this.client.connect();
    this.db = { executeSql: (text, values) => this.client.query(text, values) };
    const notify = this.workload.startsWith("latency");
    this.boss = new PgBoss({ connectionString: this.url, useListenNotify: notify, schedule: false });
    this.boss.on("error", (error) => console.error(error));
    await this.boss.start();
    if (fresh) {
      await this.boss.createQueue(QUEUE, { notify });
      await this.client.query(BUSINESS_TABLE);
    }
  },

  async writeBlock(first, count, event) {
    for (let seq = first; seq < first + count; seq += 1) {
      await this.client.query("BEGIN");
      await this.client.query({ ...BUSINESS_INSERT, values: [BUSINESS_NOTE] });
      if (event) await this.boss.send(QUEUE, payload(seq), { db: this.db });
      await this.client.query("COMMIT");
    }
  },

  async writeBatch(first, count) {
    const jobs = Array.from({ length: count }, (_, i) => ({ data: payload(first + i) }));
    await this.client.query("BEGIN");
    await this.boss.insert(QUEUE, jobs, { db: this.db });
    await this.client.query("COMMIT");
  },

  async start() {
    const localConcurrency = this.workload.startsWith("latency") ? 1 : CONCURRENCY;
    const options = { batchSize: BATCH, localConcurrency, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    await this.boss.work(QUEUE, options, async (jobs) => {
      this.meter.many(jobs.map((job) => job.data));
    });
  },

  async stop() {
    await this.boss.offWork(QUEUE);
    await this.boss.stop({ graceful: true, timeout: 10_000 });
  },
});
