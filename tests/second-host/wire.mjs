// Sockets on a thread of their own, so that the guest's thread can wait for them: a guest's calls are synchronous.
import { createConnection } from 'node:net';
import http from 'node:http';
import { MessageChannel, Worker, isMainThread, receiveMessageOnPort, workerData } from 'node:worker_threads';

/// Ask the thread, and wait for its answer.
export function start() {
  const signal = new Int32Array(new SharedArrayBuffer(4));
  const { port1, port2 } = new MessageChannel();
  const worker = new Worker(new URL(import.meta.url), { workerData: { signal, port: port2 }, transferList: [port2] });
  worker.unref();
  port1.unref();
  return (operation, given) => {
    Atomics.store(signal, 0, 0);
    port1.postMessage({ operation, given });
    Atomics.wait(signal, 0, 0);
    const { answer, failed } = receiveMessageOnPort(port1).message;
    if (failed) throw failed;
    return answer;
  };
}

const fail = (kind, message) => ({ kind, message, code: undefined });
const sockets = new Map();
let count = 0;

class Socket {
  constructor(stream) {
    Object.assign(this, { stream, bytes: Buffer.alloc(0), ended: false, broken: undefined, waiting: new Set() });
    stream.setNoDelay(true);
    const wake = () => this.waiting.forEach((wake) => wake());
    stream.on('data', (piece) => {
      this.bytes = Buffer.concat([this.bytes, piece]);
      wake();
    });
    stream.on('end', () => ((this.ended = true), wake()));
    stream.on('error', (why) => ((this.broken = why), wake()));
    stream.on('close', () => ((this.ended = true), wake()));
  }
  get readable() {
    return this.bytes.length > 0 || this.ended || this.broken !== undefined;
  }
  take(length) {
    const taken = this.bytes.subarray(0, length);
    this.bytes = this.bytes.subarray(length);
    return taken;
  }
  /// Wait until `ready` answers something. `patience`: milliseconds without a byte.
  async until(ready, patience) {
    if (this.closed) throw fail('unavailable', 'the connection was closed by a wait that ran out');
    for (;;) {
      const found = ready();
      if (found !== undefined) return found;
      if (this.broken) throw fail('unavailable', this.broken.message);
      if (this.ended) throw fail('unavailable', 'the peer closed first');
      if (!(await moved([this], patience))) {
        this.closed = true;
        this.stream.destroy();
        throw fail('unavailable', `no byte for ${patience} ms`);
      }
    }
  }
}

/// Whether something happens on one of these within the patience.
function moved(these, patience) {
  return new Promise((resolve) => {
    const done = (value) => {
      clearTimeout(timer);
      these.forEach((socket) => socket.waiting.delete(wake));
      resolve(value);
    };
    const wake = () => done(true);
    const timer = setTimeout(() => done(false), patience);
    these.forEach((socket) => socket.waiting.add(wake));
  });
}

const operations = {
  connect: ({ host, port, patience }) =>
    new Promise((resolve, reject) => {
      const stream = createConnection({ host, port, timeout: patience });
      const refused = (message) => {
        stream.destroy();
        reject(fail('unavailable', message));
      };
      stream.once('error', (why) => refused(why.message));
      stream.once('timeout', () => refused(`no connection within ${patience} ms`));
      stream.once('connect', () => {
        stream.removeAllListeners('error').removeAllListeners('timeout').setTimeout(0);
        sockets.set(++count, new Socket(stream));
        resolve(count);
      });
    }),
  async send({ id, bytes, patience }) {
    const socket = sockets.get(id);
    if (socket.closed) throw fail('unavailable', 'the connection was closed by a wait that ran out');
    if (bytes.length === 0) return;
    let written = false;
    socket.stream.write(bytes, () => {
      written = true;
      socket.waiting.forEach((wake) => wake());
    });
    await socket.until(() => (written ? true : undefined), patience);
  },
  exact: ({ id, length, patience }) => {
    const socket = sockets.get(id);
    return socket.until(() => (socket.bytes.length >= length ? socket.take(length) : undefined), patience);
  },
  async delimited({ id, delimiter, limit, patience }) {
    const socket = sockets.get(id);
    return socket.until(() => {
      const at = socket.bytes.indexOf(delimiter);
      if (at > limit || (at < 0 && socket.bytes.length >= limit + delimiter.length)) {
        throw fail('corrupt', `more than ${limit} bytes before the delimiter`);
      }
      if (at < 0) return undefined;
      const line = socket.take(at);
      socket.take(delimiter.length);
      return line;
    }, patience);
  },
  some: ({ id, limit, patience }) => {
    const socket = sockets.get(id);
    return socket.until(() => {
      if (socket.bytes.length > 0) return socket.take(limit);
      return socket.ended && !socket.broken ? Buffer.alloc(0) : undefined;
    }, patience);
  },
  async ready({ ids, patience }) {
    const these = ids.map((id) => sockets.get(id));
    const there = () => these.flatMap((socket, at) => (socket.readable || socket.closed ? [at] : []));
    const until = Date.now() + patience;
    while (there().length === 0) {
      if (!(await moved(these, until - Date.now()))) throw fail('unavailable', `none within ${patience} ms`);
    }
    return there();
  },
  /// Whether a parked connection can be taken up.
  async silent({ id }) {
    // What has arrived by now is seen.
    await new Promise((resolve) => setTimeout(resolve, 1));
    return !sockets.get(id).readable;
  },
  close({ id }) {
    sockets.get(id)?.stream.destroy();
    sockets.delete(id);
  },
  request: ({ method, host, port, path, headers, body, patience, most }) =>
    new Promise((resolve, reject) => {
      const corrupt = (why) => reject(fail(why.code?.startsWith('HPE_') ? 'corrupt' : 'unavailable', why.message));
      const asked = http.request({ method, host, port, path, headers, timeout: patience, setHost: false, agent }, (response) => {
        const pieces = [];
        let length = 0;
        response.on('data', (piece) => {
          pieces.push(piece);
          length += piece.length;
          if (most !== undefined && length > most) {
            response.destroy();
            reject(fail('exhausted', `the body is longer than ${most} bytes`));
          }
        });
        response.on('error', corrupt);
        response.on('end', () => {
          const raw = response.rawHeaders;
          const headers = Array.from({ length: raw.length / 2 }, (_, n) => [raw[2 * n].toLowerCase(), raw[2 * n + 1]]);
          resolve({ status: response.statusCode, headers, body: Buffer.concat(pieces) });
        });
      });
      asked.on('timeout', () => asked.destroy(new Error(`no byte for ${patience} ms`)));
      asked.on('error', corrupt);
      asked.end(body);
    }),
  all: async ({ operation, given }) => {
    const settled = await Promise.allSettled(given.map((each) => operations[operation](each)));
    return settled.map(({ value, reason }) => (reason ? { failed: told(reason) } : { answer: value }));
  },
};

const told = (thrown) => (thrown.kind ? thrown : fail('other', thrown.message));
const agent = isMainThread ? undefined : new http.Agent({ keepAlive: true });

if (!isMainThread) {
  const { signal, port } = workerData;
  port.on('message', async ({ operation, given }) => {
    let said;
    try {
      said = { answer: await operations[operation](given) };
    } catch (thrown) {
      said = { failed: told(thrown) };
    }
    port.postMessage(said);
    Atomics.store(signal, 0, 1);
    Atomics.notify(signal, 0);
  });
}
