// The interface `records`: one file of JSON, read and written anew by each call. It counts files as the text has them, though it has one.
import fs from 'node:fs';
import path from 'node:path';
import { error } from './contract.mjs';

const STORE = 'records.json';
const SPACES = 4;
const LONGEST_KEY = 255;
const MOST_FRESH = 262_144;
const MOST_RECORDS = 10_000_000;
const LEAST_FILES = 3;
/// What a record takes beside key and value: a host may have a head of its own before each.
const HEAD = 64;
const now = () => BigInt(Date.now()) * 1_000_000n;
const hex = (bytes) => Buffer.from(bytes).toString('hex');
const smaller = (a, b) => (a < b ? a : b);

/// The keys of a space that a guest passes, in hex.
function split(space, { width, bytes }) {
  if (space >= SPACES) throw error('invalid', `there is no space ${space}`);
  if (width < 1 || width > LONGEST_KEY || bytes.length % width !== 0) throw error('invalid', `${bytes.length} bytes are no keys of ${width}`);
  return Array.from({ length: bytes.length / width }, (_, n) => hex(bytes.slice(n * width, (n + 1) * width)));
}

export function records(state, { bytesOf, received }) {
  const file = (directory) => path.join(directory, STORE);

  class RecordOptions {
    setMaxBytes(bytes) {
      this.maxBytes = bytes;
    }
    setMaxRecords(records) {
      this.maxRecords = records;
    }
    setFileBytes(bytes) {
      this.fileBytes = bytes;
    }
    [dispose]() {}
  }

  class RecordStore {
    /// What is there, and what `change` makes of it.
    with(change) {
      const there = JSON.parse(fs.readFileSync(file(this.directory), 'utf8'));
      const answer = change(there);
      this.write(there);
      return answer;
    }
    write(there) {
      const next = `${file(this.directory)}.new`;
      fs.writeFileSync(next, JSON.stringify(there), { flush: true });
      fs.renameSync(next, file(this.directory));
    }
    longest({ fileBytes }) {
      return BigInt(fileBytes) - BigInt(LONGEST_KEY + HEAD);
    }
    most({ fileBytes, maxBytes }) {
      const files = Number((bounds.get(this.directory).maxBytes ?? BigInt(maxBytes)) / BigInt(fileBytes));
      return Math.max(files, LEAST_FILES);
    }
    find({ files }, space, key) {
      for (const one of files) {
        const found = one.records.findLast((record) => record.space === space && record.key === key);
        if (found) {
          one.used = `${now()}`;
          return found;
        }
      }
      return undefined;
    }
    forget({ files }, space, key) {
      for (const one of files) one.records = one.records.filter((record) => record.space !== space || record.key !== key);
    }
    store(there, space, key, value) {
      if (BigInt(value.length) > this.longest(there)) throw error('invalid', `a value of ${value.length} bytes is too long`);
      this.forget(there, space, key);
      const room = HEAD + key.length / 2 + value.length;
      const count = () => there.files.reduce((sum, { records }) => sum + records.length, 0);
      if (!there.files.length || there.files.at(-1).taken + room > Number(there.fileBytes)) there.files.push({ taken: 0, records: [] });
      const most = Number(bounds.get(this.directory).maxRecords ?? MOST_RECORDS);
      while (there.files.length > 1 && (there.files.length > this.most(there) || count() >= most)) {
        const rest = there.files.slice(0, -1);
        there.files.splice(there.files.indexOf(rest.reduce((a, b) => (BigInt(b.used) < BigInt(a.used) ? b : a))), 1);
      }
      const last = there.files.at(-1);
      Object.assign(last, { taken: last.taken + room, used: `${now()}` });
      last.records.push({ space, key, value: value.toString('base64') });
    }

    exists(space, keys) {
      const all = split(space, keys);
      return this.with((there) =>
        all.map((key) => {
          const found = this.find(there, space, key);
          return found ? { tag: 'present', val: BigInt(Buffer.from(found.value, 'base64').length) } : { tag: 'absent' };
        }),
      );
    }
    get(space, keys, item) {
      const all = split(space, keys);
      return this.with((there) =>
        all.map((key, n) => {
          const found = this.find(there, space, key);
          if (!found) return { tag: 'missing' };
          return { tag: 'found', val: received(Buffer.from(found.value, 'base64'), item === undefined ? undefined : item + n) };
        }),
      );
    }
    put(space, keys, values, replace) {
      const all = split(space, keys);
      if (all.length !== values.length) throw error('invalid', `${values.length} values for ${all.length} keys`);
      return this.with((there) =>
        all.map((key, n) => {
          try {
            const value = Buffer.concat(values[n].map(bytesOf));
            if (!replace && this.find(there, space, key)) return { tag: 'existed' };
            this.store(there, space, key, value);
            return { tag: 'stored' };
          } catch (thrown) {
            return { tag: 'failed', val: thrown };
          }
        }),
      );
    }
    delete(space, keys, durable) {
      const all = split(space, keys);
      return this.with((there) =>
        all.map((key) => {
          this.forget(there, space, key);
          return { tag: 'gone' };
        }),
      );
    }
    commit(space, fresh, last) {
      const lists = fresh.map((keys) => split(space, keys));
      if (lists.reduce((sum, { length }) => sum + length, 0) > MOST_FRESH) throw error('invalid', 'too many of fresh');
      const value = last && Buffer.concat(last.value.map(bytesOf));
      const [key] = last ? split(last.space, { width: last.key.length, bytes: last.key }) : [];
      return this.with((there) => {
        const gone = fresh.flatMap(({ width }, n) => {
          const absent = lists[n].filter((key) => !this.find(there, space, key));
          return absent.length ? [{ width, bytes: new Uint8Array(Buffer.from(absent.join(''), 'hex')) }] : [];
        });
        if (gone.length) return { tag: 'absent', val: gone };
        if (last) this.store(there, last.space, key, value);
        return { tag: 'published' };
      });
    }
    entries(space, after, limit) {
      if (limit === 0 || space >= SPACES) throw error('invalid', 'a limit of 1 or more, in one of 4 spaces');
      if (after !== undefined && !/^\d+$/.test(after)) throw error('invalid', `${after} is of no page`);
      const all = this.with(({ files }) =>
        files.flatMap(({ used, records }) => records.filter((record) => record.space === space).map((record) => ({ ...record, used }))),
      );
      const from = Number(after ?? 0);
      const entries = all.slice(from, from + limit).map(({ key, value, used }) => ({
        key: new Uint8Array(Buffer.from(key, 'hex')),
        size: BigInt(Buffer.from(value, 'base64').length),
        used: BigInt(used),
      }));
      return { entries, next: from + limit < all.length ? `${from + limit}` : undefined };
    }
    usage(space) {
      if (space >= SPACES) throw error('invalid', `there is no space ${space}`);
      return this.with(({ files }) => counted(files.flatMap(({ records }) => records.filter((record) => record.space === space))));
    }
    bounds() {
      return this.with((there) => ({ capacity: BigInt(there.fileBytes) * BigInt(this.most(there)), maxValueBytes: this.longest(there) }));
    }
    evict(bytes, unusedSince, keepSince) {
      return this.with((there) => {
        const gone = [];
        const order = there.files.toSorted((a, b) => (BigInt(a.used) < BigInt(b.used) ? -1 : 1));
        for (const one of order) {
          const used = BigInt(one.used);
          const unused = unusedSince !== undefined && used < unusedSince;
          if (used > keepSince || !(unused || counted(gone).bytes < bytes)) break;
          gone.push(...one.records);
          there.files.splice(there.files.indexOf(one), 1);
        }
        const records = Array.from({ length: SPACES }, (_, space) => counted(gone.filter((record) => record.space === space)).records);
        return { bytes: counted(gone).bytes, records: BigUint64Array.from(records), more: false };
      });
    }
    [dispose]() {}
  }

  const counted = (records) => ({
    records: BigInt(records.length),
    bytes: records.reduce((sum, { value }) => sum + BigInt(Buffer.from(value, 'base64').length), 0n),
  });

  return {
    'kv-store:backend/records': {
      RecordOptions,
      RecordStore,
      openRecords(grant, options = {}) {
        if (grant !== '' || state.directory === undefined) throw error('denied', `no directory is granted as ${JSON.stringify(grant)}`);
        if (!fs.existsSync(state.directory)) throw error('unavailable', `${state.directory} is not there`);
        const { bavail, bsize } = fs.statfsSync(state.directory, { bigint: true });
        const maxBytes = options.maxBytes ?? ((bavail * bsize) / 5n) * 4n;
        const eighth = smaller((maxBytes / 8n / 64n) * 64n, 256n << 20n);
        const fileBytes = options.fileBytes ?? eighth;
        if (fileBytes < 64n || fileBytes % 64n !== 0n || maxBytes / fileBytes < LEAST_FILES) {
          throw error('invalid', `files of ${fileBytes} bytes in ${maxBytes}`);
        }
        const store = Object.assign(new RecordStore(), { directory: state.directory });
        if (!fs.existsSync(file(state.directory))) store.write({ fileBytes: `${fileBytes}`, maxBytes: `${maxBytes}`, files: [] });
        // What is set holds for all of this process.
        const { maxBytes: bytes, maxRecords } = options;
        const former = bounds.get(state.directory) ?? {};
        bounds.set(state.directory, { maxBytes: bytes ?? former.maxBytes, maxRecords: maxRecords ?? former.maxRecords });
        return store;
      },
    },
  };
}

/// The bounds that were set in this process, by directory.
const bounds = new Map();
const dispose = Symbol.dispose ?? Symbol.for('dispose');
