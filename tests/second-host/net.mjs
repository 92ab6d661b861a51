// The interfaces `net` and `http`, without TLS.
import { error } from './contract.mjs';
import { start } from './wire.mjs';

const PATIENCE_NS = 1_000_000n;
const MOST = 16;

function server(state, authority) {
  const match = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(authority);
  if (!match) throw error('invalid', `${JSON.stringify(authority)} is not host:port`);
  if (!state.servers.includes(authority)) throw error('denied', `${authority} is not granted`);
  return { host: match[1] ?? match[2], port: Number(match[3]) };
}

/// A name that TLS would ask for.
function checkName(name) {
  if (name !== undefined && !/^[A-Za-z0-9.-]{1,253}$/.test(name)) throw error('invalid', `${name} is no name of a server`);
}

export function net(state, { bytesOf, received }) {
  const wire = start();
  const parked = new Map();
  let open = 0;
  const milliseconds = (own) => Math.max(1, Math.min(own ?? state.patience, state.patience, state.left()));

  class ConnectOptions {
    setTls(tls) {
      this.tls = tls;
    }
    setServerName(name) {
      this.name = name;
    }
    setSession(session) {
      if (Buffer.byteLength(session) > 1024) throw error('invalid', 'a session of over 1024 bytes');
      this.session = session;
    }
    setPatience(duration) {
      this.patience = Number(duration / PATIENCE_NS);
    }
    [dispose]() {}
  }

  class Connection {
    ask(operation, given = {}) {
      return wire(operation, { id: this.id, patience: milliseconds(this.patience), ...given });
    }
    send(parts) {
      this.ask('send', { bytes: Buffer.concat(parts.map(bytesOf)) });
    }
    receiveExact(length) {
      return new Uint8Array(this.ask('exact', { length }));
    }
    receiveUntil(delimiter, limit) {
      if (delimiter.length < 1 || delimiter.length > 16) throw error('invalid', 'a delimiter of 1 to 16 bytes');
      return new Uint8Array(this.ask('delimited', { delimiter, limit }));
    }
    receiveSome(limit) {
      if (limit === 0) throw error('invalid', 'a limit of 0');
      return new Uint8Array(this.ask('some', { limit }));
    }
    receivePayload(length, item) {
      return received(Buffer.from(this.ask('exact', { length: Number(length) })), item);
    }
    skip(length) {
      this.ask('exact', { length: Number(length) });
    }
    setPatience(duration) {
      this.patience = Number(duration / PATIENCE_NS);
    }
    resumed() {
      return this.wasResumed;
    }
    [dispose]() {
      if (this.id === undefined) return;
      wire('close', { id: this.id });
      this.id = undefined;
      open--;
    }
  }

  /// What `connect` needs, or a parked connection.
  const prepare = (authority, options) => {
    const to = server(state, authority);
    checkName(options?.name);
    if (options?.tls) throw error('unsupported', 'this host has no TLS');
    const key = options?.session === undefined ? undefined : JSON.stringify([authority, options.name, options.session]);
    while (key !== undefined && parked.get(key)?.length > 0) {
      const id = parked.get(key).pop();
      if (wire('silent', { id })) return { id, key };
      wire('close', { id });
    }
    if (open >= MOST) throw error('exhausted', `an instance may have ${MOST} connections`);
    return { key, to: { ...to, patience: milliseconds(options?.patience) } };
  };
  const made = (id, key, options, wasResumed) => {
    open++;
    return Object.assign(new Connection(), { id, key, patience: options?.patience, wasResumed });
  };
  const connect = (authority, options) => {
    const { id, key, to } = prepare(authority, options);
    return made(id ?? wire('connect', to), key, options, id !== undefined);
  };
  const settled = (run) => {
    try {
      return { tag: 'ok', val: run() };
    } catch (thrown) {
      if (thrown.kind) return { tag: 'err', val: thrown };
      throw thrown;
    }
  };
  /// Several, side by side: what makes each, or the error in place of it.
  const together = (operation, prepared) => {
    const given = prepared.flatMap(({ tag, val }) => (tag === 'ok' && val.given ? [val.given] : []));
    const answers = given.length > 0 ? wire('all', { operation, given }) : [];
    return prepared.map(({ tag, val }) => {
      if (tag === 'err') return { tag, val };
      const { answer, failed } = val.given ? answers.shift() : { answer: val.answer };
      return failed ? { tag: 'err', val: failed } : settled(() => val.finish(answer));
    });
  };

  return {
    'kv-store:backend/net': {
      ConnectOptions,
      Connection,
      connect,
      connectAll: (requests) =>
        together(
          'connect',
          requests.map(({ authority, options }) =>
            settled(() => {
              const { id, key, to } = prepare(authority, options);
              const finish = (made_) => made(made_, key, options, id !== undefined);
              return { given: to, answer: id, finish };
            }),
          ),
        ),
      sendAll: (messages) =>
        together(
          'send',
          messages.map(({ connection, parts }, at) =>
            settled(() => {
              if (messages.findIndex((other) => other.connection === connection) < at) {
                throw error('invalid', 'the connection is that of an earlier message');
              }
              const bytes = Buffer.concat(parts.map(bytesOf));
              return { given: { id: connection.id, patience: milliseconds(connection.patience), bytes }, finish: () => {} };
            }),
          ),
        ),
      ready(connections, patience) {
        const ids = connections.map((connection) => connection.id);
        if (ids.length === 0 || new Set(ids).size < ids.length) throw error('invalid', 'an empty list, or one twice');
        const own = patience === undefined ? undefined : Number(patience / PATIENCE_NS);
        return new Uint32Array(wire('ready', { ids, patience: milliseconds(own) }));
      },
      park(connection) {
        const { id, key } = connection;
        if (key === undefined) return connection[dispose]();
        connection.id = undefined;
        open--;
        parked.set(key, [...(parked.get(key) ?? []), id]);
      },
    },
    'kv-store:backend/http': http(state, { bytesOf, received, together, settled, milliseconds }),
  };
}

const dispose = Symbol.dispose ?? Symbol.for('dispose');
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const OURS = ['host', 'content-length', 'transfer-encoding', 'connection', 'keep-alive', 'te', 'trailer', 'upgrade', 'expect'];
const HEAD = 64 << 10;

function http(state, { bytesOf, received, together, settled, milliseconds }) {
  class RequestOptions {
    setTls(tls) {
      this.tls = tls;
    }
    setServerName(name) {
      this.name = name;
    }
    setPatience(duration) {
      this.patience = Number(duration / PATIENCE_NS);
    }
    setMaxBody(bytes) {
      this.most = Number(bytes);
    }
    [dispose]() {}
  }
  const prepare = ({ method, authority, path, headers, body, item, options }) => {
    const invalid = (what) => error('invalid', what);
    if (!TOKEN.test(method) || method === 'CONNECT') throw invalid(`the method ${method}`);
    if (!/^\/[!-"$-~]*$/.test(path)) throw invalid(`the path ${path}`);
    if (headers.length > 128) throw invalid('more than 128 headers');
    for (const [name, value] of headers) {
      if (!TOKEN.test(name) || OURS.includes(name.toLowerCase()) || !/^[ \t!-~]*$/.test(value)) throw invalid(`the header ${name}`);
    }
    const head = method.length + path.length + headers.reduce((all, [name, value]) => all + name.length + value.length + 4, 0);
    if (head > HEAD) throw invalid('more than 64 KiB of head');
    const bytes = Buffer.concat(body.map(bytesOf));
    const { host, port } = server(state, authority);
    checkName(options?.name);
    if (options?.tls) throw error('unsupported', 'this host has no TLS');
    const length = bytes.length > 0 || !['GET', 'HEAD', 'DELETE', 'OPTIONS'].includes(method) ? [['Content-Length', `${bytes.length}`]] : [];
    const all = [['Host', port === 80 ? authority.replace(/:80$/, '') : authority], ...length, ...headers].flat();
    const given = { method, host, port, path, headers: all, body: bytes, patience: milliseconds(options?.patience), most: options?.most };
    const finish = ({ status, headers, body }) => ({
      status,
      headers,
      body: received(Buffer.from(body), [200, 206].includes(status) ? item : undefined),
    });
    return { given, finish };
  };
  return { RequestOptions, send: (requests) => together('request', requests.map((request) => settled(() => prepare(request)))) };
}
