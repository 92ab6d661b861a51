// The interface `files` on a directory of this machine.
import fs from 'node:fs';
import path from 'node:path';
import { error } from './contract.mjs';

const TEMPORARY = '.kv-second-host';

/// The segments of a path of the contract.
function segments(text) {
  const parts = text.split('/');
  const wrong = (part) =>
    part === '' || part === '.' || part === '..' || part.startsWith('.kv-') || /[\0\\:]/.test(part) || Buffer.byteLength(part) > 255;
  if (parts.some(wrong)) throw error('invalid', `${JSON.stringify(text)} is no path`);
  return parts;
}

/// What an outcome of a batch has in place of an error that is thrown.
const outcome = (run) => {
  try {
    return run();
  } catch (thrown) {
    return { tag: 'failed', val: told(thrown) };
  }
};

const KINDS = { ENOSPC: 'exhausted', EDQUOT: 'exhausted', EACCES: 'denied', EPERM: 'denied', ENAMETOOLONG: 'invalid' };

function told(thrown) {
  if (thrown.kind) return thrown;
  return error(KINDS[thrown.code] ?? 'other', thrown.message);
}

const nanoseconds = (milliseconds) => BigInt(Math.floor(milliseconds * 1e3)) * 1000n;

export function files(state, { bytesOf, received }) {
  const root = state.directory;
  /// The place of a path, none of whose directories is a link. Undefined: it is not there, and cannot be.
  const place = (text) => {
    const parts = segments(text);
    let at = root;
    for (const part of parts.slice(0, -1)) {
      at = path.join(at, part);
      const found = fs.lstatSync(at, { throwIfNoEntry: false });
      if (found && !found.isDirectory()) return undefined;
    }
    return path.join(root, ...parts);
  };
  const file = (text) => {
    const at = place(text);
    const found = at && fs.lstatSync(at, { throwIfNoEntry: false });
    return found?.isFile() ? { at, ...found, size: found.size } : found ? { other: true } : undefined;
  };
  const used = (at) => fs.utimesSync(at, new Date(), fs.statSync(at).mtime);
  const sync = (at) => {
    const handle = fs.openSync(at, 'r');
    try {
      fs.fsyncSync(handle);
    } finally {
      fs.closeSync(handle);
    }
  };
  const syncParents = (at) => {
    for (let folder = path.dirname(at); folder.startsWith(root); folder = path.dirname(folder)) sync(folder);
  };
  const notAFile = () => error('invalid', 'not of this kind: a file or a directory');

  class Directory {
    read(requests) {
      return requests.map(({ path: text, offset, len, item }) =>
        outcome(() => {
          const found = file(text);
          if (!found) return { tag: 'missing' };
          if (found.other) throw notAFile();
          const all = fs.readFileSync(found.at);
          const end = len === undefined ? BigInt(all.length) : offset + len;
          if (end > BigInt(all.length) || offset > end) throw error('invalid', 'the file ends before');
          used(found.at);
          return { tag: 'found', val: received(Buffer.from(all.subarray(Number(offset), Number(end))), item) };
        }),
      );
    }
    write(requests, durable) {
      return requests.map(({ path: text, content, replace }) =>
        outcome(() => {
          const bytes = Buffer.concat(content.map(bytesOf));
          const at = place(text);
          if (!at) throw error('invalid', 'a part of the path is a file');
          fs.mkdirSync(path.dirname(at), { recursive: true });
          const folder = path.join(root, TEMPORARY);
          fs.mkdirSync(folder, { recursive: true });
          const temporary = path.join(folder, `${process.pid}`);
          fs.writeFileSync(temporary, bytes);
          if (durable) sync(temporary);
          try {
            const there = fs.lstatSync(at, { throwIfNoEntry: false });
            if (there && !there.isFile()) throw notAFile();
            if (there && !replace) return { tag: 'existed' };
            if (replace) fs.renameSync(temporary, at);
            else fs.linkSync(temporary, at);
          } finally {
            fs.rmSync(temporary, { force: true });
          }
          if (durable) syncParents(at);
          return { tag: 'written' };
        }),
      );
    }
    sizes(paths) {
      return paths.map((text) =>
        outcome(() => {
          const found = file(text);
          if (!found || found.other) return { tag: 'missing' };
          used(found.at);
          return { tag: 'size', val: BigInt(found.size) };
        }),
      );
    }
    sync(paths) {
      for (const text of paths) {
        const found = file(text);
        if (!found) throw error('invalid', `${text} is not there`);
        sync(found.at);
        syncParents(found.at);
      }
    }
    remove(paths, durable) {
      return paths.map((text) =>
        outcome(() => {
          const at = place(text);
          const found = at && fs.lstatSync(at, { throwIfNoEntry: false });
          if (!found) return { tag: 'missing' };
          if (!found.isDirectory()) fs.unlinkSync(at);
          else if (fs.readdirSync(at).length > 0) throw error('invalid', 'the directory is not empty');
          else fs.rmdirSync(at);
          if (durable) syncParents(at);
          return { tag: 'removed' };
        }),
      );
    }
    removeUnused(paths, since) {
      return paths.map((text) =>
        outcome(() => {
          const found = file(text);
          if (!found) return { tag: 'missing' };
          if (found.other) throw notAFile();
          if (nanoseconds(Math.max(found.mtimeMs, found.atimeMs)) > since) return { tag: 'kept' };
          fs.unlinkSync(found.at);
          return { tag: 'removed', val: BigInt(found.size) };
        }),
      );
    }
    space() {
      const { bsize, blocks, bavail } = fs.statfsSync(root, { bigint: true });
      return { total: bsize * blocks, available: bsize * bavail };
    }
    entries(text, after, limit) {
      if (limit === 0) throw error('invalid', 'a limit of 0');
      const at = text === '' ? root : place(text);
      const found = at && fs.lstatSync(at, { throwIfNoEntry: false });
      if (!found) return [];
      if (!found.isDirectory()) throw notAFile();
      const order = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
      const names = fs.readdirSync(at).filter((name) => !name.startsWith('.kv-') && (after === undefined || order(name, after) > 0));
      const entry = (name) => {
        const stat = fs.lstatSync(path.join(at, name), { throwIfNoEntry: false });
        if (!stat || !(stat.isFile() || stat.isDirectory())) return [];
        const directory = stat.isDirectory();
        const [modified, used] = [stat.mtimeMs, Math.max(stat.mtimeMs, stat.atimeMs)].map(nanoseconds);
        return [{ name, directory, size: directory ? 0n : BigInt(stat.size), modified, used }];
      };
      return names.sort(order).flatMap(entry).slice(0, limit);
    }
    [Symbol.dispose ?? Symbol.for('dispose')]() {}
  }
  // What is thrown by a whole call is an error of the contract too.
  for (const name of ['sync', 'space', 'entries']) {
    const run = Directory.prototype[name];
    Directory.prototype[name] = function (...given) {
      try {
        return run.apply(this, given);
      } catch (thrown) {
        throw told(thrown);
      }
    };
  }
  return {
    'kv-store:backend/files': {
      Directory,
      openDirectory(grant) {
        if (grant !== '' || !root) throw error('denied', `no directory is granted under ${JSON.stringify(grant)}`);
        return new Directory();
      },
    },
  };
}
