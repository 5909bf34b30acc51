// graphile-worker: add_job / add_jobs in the caller's transaction; run() as the worker.
import pg from "pg";
import { Logger, run, runMigrations } from "graphile-worker";
import { BUSINESS_INSERT, BUSINESS_NOTE, BUSINESS_TABLE, installed, payload, serve } from "./peer.mjs";

const SINGLE = { name: "add_job", text: "SELECT graphile_worker.add_job('bench', $1::json)" };
const BATCH = {
  name: "add_jobs",
  text:
    "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(SELECT json_populate_record(" +
    "null::graphile_worker.job_spec, json_build_object('identifier', 'bench', 'payload', body)) " +
    "FROM json_array_elements($1::json) AS body))",
};
const quiet = new Logger(() => () => {});

serve({
  version: installed("graphile-worker"),
  settings: {
    driver: "pg (prepared statements)",
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: "drain: size 500; latency: off",
    completeJobBatchDelay: 0,
    "batched write": "graphile_worker.add_jobs",
    payload: "decoded JSON",
  },

  async setup(fresh) {
    this.client = new pg.Client({ connectionString: this.url });
    await this.client.connect();
    if (fresh) {
      await runMigrations({ connectionString: this.url, logger: quiet });
      await this.client.query(BUSINESS_TABLE);
    }
  },

  async writeBlock(first, count, event) {
    for (let seq = first; seq < first + count; seq += 1) {
      await this.client.query("BEGIN");
      await this.client.query({ ...BUSINESS_INSERT, values: [BUSINESS_NOTE] });
      if (event) await this.client.query({ ...SINGLE, values: [JSON.stringify(payload(seq))] });
      await this.client.query("COMMIT");
    }
  },

  async writeBatch(first, count) {
    const bodies = Array.from({ length: count }, (_, i) => payload(first + i));
    await this.client.query("BEGIN");
    await this.client.query({ ...BATCH, values: [JSON.stringify(bodies)] });
    await this.client.query("COMMIT");
  },

  async start() {
    const draining = !this.workload.startsWith("latency");
    this.runner = await run({
      preset: {
        worker: {
          connectionString: this.url,
          concurrentJobs: 24,
          maxPoolSize: 25,
          logger: quiet,
          ...(draining ? { localQueue: { size: 500 } } : {}),
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
      noHandleSignals: true,
      taskList: { bench: (body) => this.meter.one(body) },
    });
  },

  async stop() {
    await this.runner.stop();
  },
});
