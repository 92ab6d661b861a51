// What a host knows of one instance: its grants, the items of the running call, and what it may still use of them.
import { createHash, createHmac, randomBytes } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { createCRC32, createXXHash3 } from 'hash-wasm';

const CRC32C = await createCRC32(0x82f63b78);
const XXH3 = await createXXHash3();

/// An error of the contract, to be thrown: what `result<_, error>` answers.
export const error = (kind, message) => ({ kind, message, code: undefined });

/// What ends an instance.
export class Trap extends Error {}

const MAX_PAYLOAD = 1n << 30n;

export class State {
  constructor({ directory, servers = [], secrets = {}, patience = 5000, deadline = 10_000 }) {
    Object.assign(this, { directory, servers, secrets, patience, deadline });
    this.items = [];
    this.writable = false;
    this.until = 0;
    this.lent = [];
    this.log = [];
    this.changes = new Map();
    this.begun = new Map();
  }

  /// One call into the guest, with the bytes of its items, or the number of items that are wanted.
  call({ items = [], wanted = 0, keys = [] }, run) {
    Object.assign(this, { items, wanted, keys, until: performance.now() + this.deadline, lent: [], begun: new Map() });
    let failed = true;
    try {
      const answer = run();
      failed = false;
      return answer;
    } finally {
      for (const [item, token] of this.begun) {
        const key = this.keys[item];
        // What failed, and was begun, may still be carried out.
        if (failed) this.changes.set(key, token);
      }
      // What lay in the consumer's memory is the consumer's.
      for (const payload of this.lent) payload.data = undefined;
      Object.assign(this, { items: [], wanted: 0 });
    }
  }

  /// Milliseconds until the call must be over.
  left() {
    return Math.max(0, this.until - performance.now());
  }
}

/// The interfaces of the contract that need no input or output.
export function plain(state, { Payload, bytesOf }) {
  return {
    'kv-store:backend/payloads': { Payload, ...sums(bytesOf) },
    'kv-store:backend/system': system(state),
    'kv-store:backend/changes': {
      begin(items, token) {
        if (token.length > 64) throw new Trap('changes.begin: a token of more than 64 bytes');
        const former = [];
        for (const item of items) {
          const key = state.keys[item];
          if (key === undefined) continue;
          if (state.changes.has(key)) former.push(state.changes.get(key));
          state.begun.set(item, token);
        }
        return former;
      },
      notDone(items) {
        for (const item of items) state.begun.delete(item);
      },
    },
  };
}

/// The class of payloads of one instance, and what reads parts.
export function payloads(state) {
  const live = (payload) => {
    if (payload.data === undefined) throw error('invalid', 'the payload has ended');
    return payload.data;
  };
  const within = (data, offset, len) => {
    if (offset + len > BigInt(data.length)) throw error('invalid', `${offset} + ${len} is past the end, ${data.length}`);
    return data.subarray(Number(offset), Number(offset + len));
  };
  class Payload {
    data;
    static fromBytes(bytes) {
      return make(Buffer.from(bytes));
    }
    static fromParts(parts) {
      return make(Buffer.concat(parts.map(bytesOf)));
    }
    len() {
      return BigInt(this.data?.length ?? 0);
    }
    read(offset, len) {
      return new Uint8Array(within(live(this), offset, BigInt(len)));
    }
    share() {
      return make(Buffer.from(live(this)));
    }
    [Symbol.dispose ?? Symbol.for('dispose')]() {}
  }
  const make = (data) => {
    if (BigInt(data.length) > MAX_PAYLOAD) throw error('exhausted', 'over the quota of payloads');
    return Object.assign(new Payload(), { data });
  };
  const item = (number) => {
    if (state.items[number] === undefined) throw error('invalid', `the call has no item ${number}`);
    return state.items[number];
  };
  const bytesOf = (part) => {
    switch (part.tag) {
      case 'bytes':
        return Buffer.from(part.val);
      case 'payload':
        return live(part.val);
      case 'range':
        return within(live(part.val.payload), part.val.offset, part.val.len);
      case 'item':
        return item(part.val);
      default:
        return within(item(part.val.item), part.val.offset, part.val.len);
    }
  };
  /// Bytes that came, for an item of `get-chunks` or for none.
  const received = (data, number) => {
    const payload = make(data);
    if (number !== undefined && number < state.wanted) state.lent.push(payload);
    return payload;
  };
  return { Payload, bytesOf, received };
}

function sums(bytesOf) {
  const all = (parts) => Buffer.concat(parts.map(bytesOf));
  return {
    crc32c: (parts) => parseInt(CRC32C.init().update(all(parts)).digest(), 16),
    xxh3: (parts) => BigInt(`0x${XXH3.init().update(all(parts)).digest()}`),
    sha256: (parts) => new Uint8Array(createHash('sha256').update(all(parts)).digest()),
    hmacSha256: (key, parts) => new Uint8Array(createHmac('sha256', key).update(all(parts)).digest()),
  };
}

const FACTS = {
  contract: '1.1.0-rc',
  host: 'second-host 1',
  'memory-bytes': `${64 << 20}`,
  'payload-bytes': `${MAX_PAYLOAD}`,
  connections: '16',
  'patience-ms': '5000',
  'batch-items': '4096',
};

function system(state) {
  const cell = new Int32Array(new SharedArrayBuffer(4));
  return {
    log: (level, message) => state.log.push({ level, message: message.replace(/[\p{Cc}]/gu, '?') }),
    secret(name) {
      if (!/^[a-z0-9-]{1,64}$/.test(name)) throw error('denied', `${name}: not the name of a secret`);
      return state.secrets[name];
    },
    now: () => BigInt(Date.now()) * 1_000_000n,
    monotonic: () => process.hrtime.bigint(),
    remaining: () => BigInt(Math.floor(state.left() * 1e6)),
    sleep(duration) {
      const milliseconds = Number(duration) / 1e6;
      if (milliseconds >= state.left()) throw error('unavailable', 'the deadline would be reached');
      Atomics.wait(cell, 0, 0, milliseconds);
    },
    random: () => randomBytes(8).readBigUInt64LE(),
    fact: (name) => (Object.hasOwn(FACTS, name) ? FACTS[name] : undefined),
  };
}
