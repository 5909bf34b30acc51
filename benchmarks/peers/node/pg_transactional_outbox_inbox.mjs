// pg-transactional-outbox as an inbox: stored as its receiver does, processed by its polling or replication listener.
import { randomUUID } from "node:crypto";
import pg from "pg";
import outbox from "pg-transactional-outbox";
import { PREFETCH, installed, payload, serve } from "./peer.mjs";

const kind = process.argv[2];
const logger = outbox.getDisabledLogger();
const TABLE = { outboxOrInbox: "inbox", schema: "public", table: "inbox" };
const SLOT = { publication: "inbox_pub", replicationSlot: "inbox_slot" };
const NEXT = "next_inbox_messages";
const BATCH = 50;
const POLL_MS = 10;

serve({
  version: installed("pg-transactional-outbox"),
  settings: {
    driver: "pg",
    listener: kind,
    stored: `each message in a transaction of its own, ${PREFETCH} at a time`,
    ...(kind === "polling"
      ? { nextMessagesBatchSize: BATCH, nextMessagesPollingIntervalInMs: POLL_MS, concurrency: "parallel" }
      : { concurrencyStrategy: `semaphore of ${PREFETCH}` }),
    protection: "max attempts and poisonous messages, its defaults for an inbox",
  },

  async setup(fresh) {
    const { pathname } = new URL(this.url);
    const connection = { connectionString: this.url };
    this.pool = new pg.Pool({ ...connection, max: PREFETCH });
    const base = { dbSchema: "public", dbTable: "inbox", enableMaxAttemptsProtection: true };
    this.config = {
      outboxOrInbox: "inbox",
      dbListenerConfig: connection,
      dbHandlerConfig: connection,
      settings: { ...base, enablePoisonousMessageProtection: true, ...this.listenerSettings() },
    };
    this.store = outbox.initializeMessageStorage(this.config, logger);
    if (!fresh) return;
    const setup = outbox.DatabaseSetup;
    const { rows } = await this.pool.query("SELECT current_user AS name");
    const plan = { ...TABLE, ...SLOT, database: pathname.slice(1), listenerRole: rows[0].name, nextMessagesName: NEXT };
    await this.pool.query(setup.dropAndCreateTable(plan));
    if (kind === "polling") {
      await this.pool.query(setup.createPollingFunction(plan));
      await this.pool.query(setup.setupPollingIndexes(plan));
    } else {
      await this.pool.query(setup.setupReplicationCore(plan));
      for (const statement of setup.setupReplicationSlot(plan).split(";")) await this.pool.query(statement);
    }
  },

  listenerSettings() {
    if (kind !== "polling") return { dbPublication: SLOT.publication, dbReplicationSlot: SLOT.replicationSlot };
    return {
      nextMessagesFunctionName: NEXT,
      nextMessagesBatchSize: BATCH,
      nextMessagesPollingIntervalInMs: POLL_MS,
    };
  },

  async writeBatch(first, count) {
    let seq = first;
    const consume = async () => {
      while (seq < first + count) {
        const message = {
          id: randomUUID(),
          aggregateType: "order",
          aggregateId: `order-${seq % 5000}`,
          messageType: "placed",
          payload: payload(seq++),
          concurrency: "parallel",
          createdAt: new Date().toISOString(),
        };
        await outbox.executeTransaction(
          await this.pool.connect(),
          (client) => this.store(message, client),
          outbox.IsolationLevel.ReadCommitted,
        );
      }
    };
    await Promise.all(Array.from({ length: PREFETCH }, consume));
  },

  async start() {
    const handle = async (message) => this.meter.one(message.payload);
    const handlers = [{ aggregateType: "order", messageType: "placed", handle }];
    if (kind === "polling") {
      [this.shutdown] = outbox.initializePollingMessageListener(this.config, handlers, logger);
    } else {
      const strategies = { concurrencyStrategy: outbox.createReplicationSemaphoreConcurrencyController(PREFETCH) };
      [this.shutdown] = outbox.initializeReplicationMessageListener(this.config, handlers, logger, strategies);
    }
  },

  async stop() {
    await this.shutdown();
  },
});
