// A backend that calls each function of the contract's imports. The manifest `rows` tells what came: `INTERFACE.FUNCTION: OUTCOME`, one
// line for each call. `tests/compat/calls.txt` has what must come, on every host.
//
// `SCHEME:///DIRECTORY` calls `payloads`, `system`, `changes` and `files`; `SCHEME://ECHO,OBJECTS/x` calls `net` on a server that answers
// each line with itself, and `http` on one that keeps objects.
import { Payload, crc32c, xxh3, sha256, hmacSha256 } from 'kv-store:backend/payloads@1.0.0';
import { ConnectOptions, connect, connectAll, sendAll, ready, park } from 'kv-store:backend/net@1.0.0';
import { RequestOptions, send } from 'kv-store:backend/http@1.0.0';
import { openDirectory } from 'kv-store:backend/files@1.0.0';
import { log, secret, now, monotonic, remaining, sleep, random, fact } from 'kv-store:backend/system@1.0.0';
import { begin, notDone } from 'kv-store:backend/changes@1.0.0';

const SECOND = 1_000_000_000n;
const encoded = (text) => new TextEncoder().encode(text);
const text = (bytes) => new TextDecoder().decode(bytes);
const part = (bytes) => ({ tag: 'bytes', val: encoded(bytes) });
const content = (payload) => text(payload.read(0n, Number(payload.len())));
const hex = (bytes) => Array.from(bytes.slice(0, 8), (byte) => byte.toString(16).padStart(2, '0')).join('');

let where = '';
let rows = [];

// Note what a call came to. Answers what it answered.
function row(name, call, shown = (answer) => (answer === undefined ? 'done' : answer)) {
  try {
    const answer = call();
    rows.push(`${name}: ${shown(answer)}\n`);
    return answer;
  } catch (error) {
    const said = error.payload?.kind ?? `${error}`;
    rows.push(`${name}: ${said}\n`);
    return undefined;
  }
}

const is = () => 'done';

function ownBytes() {
  const payload = row('payloads.payload.from-bytes', () => Payload.fromBytes(encoded('0123456789')), is);
  const range = { tag: 'range', val: { payload, offset: 2n, len: 3n } };
  row('payloads.payload.from-parts', () => Payload.fromParts([part('a'), range]), content);
  row('payloads.payload.len', () => payload.len());
  row('payloads.payload.read', () => payload.read(2n, 3), text);
  row('payloads.payload.share', () => payload.share(), content);
  const all = [{ tag: 'payload', val: payload }];
  row('payloads.crc32c', () => crc32c(all), (sum) => sum.toString(16));
  row('payloads.xxh3', () => xxh3(all), (sum) => sum.toString(16));
  row('payloads.sha256', () => sha256([part('abc')]), hex);
  row('payloads.hmac-sha256', () => hmacSha256(encoded('key'), [part('abc')]), hex);
}

function host() {
  row('system.log', () => log('debug', 'a line'));
  row('system.secret', () => secret('not-set'), (found) => found ?? 'none');
  row('system.now', () => now() > 1_704_000_000n * SECOND);
  const then = monotonic();
  row('system.sleep', () => sleep(1_000_000n));
  row('system.monotonic', () => monotonic() - then >= 1_000_000n);
  row('system.remaining', () => remaining() > 0n);
  row('system.random', () => random() !== random());
  row('system.fact', () => fact('contract') !== undefined && fact('no-such-fact') === undefined);
  row('changes.begin', () => begin(Uint32Array.of(0), encoded('token')).length);
  row('changes.not-done', () => notDone(Uint32Array.of(0)));
}

function directory() {
  const d = row('files.open-directory', () => openDirectory(''), is);
  const tag = ([outcome]) => outcome.tag;
  const write = (path) => d.write([{ path, content: [part('hello')], replace: true }], false);
  row('files.directory.write', () => write('a'), tag);
  const read = [{ path: 'a', offset: 1n, len: 3n, item: undefined }];
  row('files.directory.read', () => d.read(read), ([outcome]) => content(outcome.val));
  row('files.directory.sizes', () => d.sizes(['a']), ([outcome]) => outcome.val);
  row('files.directory.sync', () => d.sync(['a']));
  row('files.directory.entries', () => d.entries('', undefined, 10), (entries) => entries.map(({ name }) => name).join(' '));
  row('files.directory.space', () => d.space().total > 0n);
  row('files.directory.remove-unused', () => d.removeUnused(['a'], 2n ** 64n - 1n), ([outcome]) => `${outcome.tag} ${outcome.val}`);
  write('b');
  row('files.directory.remove', () => d.remove(['b'], true), tag);
}

function network(echo) {
  const options = row('net.connect-options.constructor', () => new ConnectOptions(), is);
  row('net.connect-options.set-tls', () => options.setTls(false));
  row('net.connect-options.set-server-name', () => options.setServerName(echo.split(':')[0]));
  row('net.connect-options.set-session', () => options.setSession('calls'));
  row('net.connect-options.set-patience', () => options.setPatience(SECOND));
  const c = row('net.connect', () => connect(echo, options), is);
  row('net.connection.resumed', () => c.resumed());
  row('net.connection.set-patience', () => c.setPatience(SECOND));
  row('net.connection.send', () => c.send([part('exactuntil\npayload skip\n')]));
  row('net.connection.receive-exact', () => c.receiveExact(5), text);
  row('net.connection.receive-until', () => c.receiveUntil(encoded('\n'), 10), text);
  row('net.connection.receive-payload', () => c.receivePayload(7n, undefined), content);
  row('net.connection.skip', () => c.skip(6n));
  c.send([part('s')]);
  c.send([part('\n')]);
  row('net.connection.receive-some', () => c.receiveSome(1), text);
  c.skip(1n);
  row('net.park', () => park(c));
  row('net.connection.resumed', () => connect(echo, options).resumed());
  const request = { authority: echo, options: undefined };
  const outcomes = (answers) => answers.map(({ tag }) => tag).join(' ');
  const both = row('net.connect-all', () => connectAll([request, request]), outcomes).map(({ val }) => val);
  row('net.send-all', () => sendAll(both.map((connection, n) => ({ connection, parts: n ? [part('here\n')] : [] }))), outcomes);
  row('net.ready', () => ready(both, SECOND), (places) => Array.from(places).join(' '));
}

function requests(authority) {
  const options = row('http.request-options.constructor', () => new RequestOptions(), is);
  row('http.request-options.set-tls', () => options.setTls(false));
  row('http.request-options.set-server-name', () => options.setServerName(authority.split(':')[0]));
  row('http.request-options.set-patience', () => options.setPatience(SECOND));
  row('http.request-options.set-max-body', () => options.setMaxBody(6n));
  const request = (method, body, options) => ({ method, authority, path: '/calls/a', headers: [], body, item: undefined, options });
  const outcome = ([answer]) => (answer.tag === 'ok' ? `${answer.val.status} ${content(answer.val.body)}`.trimEnd() : answer.val.kind);
  row('http.send', () => send([request('PUT', [part('object')], undefined)]), outcome);
  row('http.send', () => send([request('GET', [], options)]), outcome);
  options.setMaxBody(5n);
  row('http.send', () => send([request('GET', [], options)]), outcome);
  row('http.send', () => send([request('DELETE', [], undefined)]), outcome);
}

export const store = {
  open(uri) {
    where = uri.slice(uri.indexOf('://') + 3);
    return { label: 'calls', properties: { holdsData: true }, more: [] };
  },
  exists({ width, bytes }) {
    return Array.from({ length: bytes.length / width }, () => ({ tag: 'absent' }));
  },
  putChunks(hashes, lens) {
    const val = { kind: 'unsupported', message: 'this backend keeps nothing' };
    return Array.from(lens, () => ({ tag: 'failed', val }));
  },
  getChunks({ width, bytes }) {
    return Array.from({ length: bytes.length / width }, () => ({ tag: 'missing' }));
  },
  deleteChunks({ width, bytes }) {
    return Array.from({ length: bytes.length / width }, () => ({ tag: 'gone' }));
  },
  commit() {
    return { tag: 'published' };
  },
  getManifest(name) {
    if (name !== 'rows') return undefined;
    rows = [];
    if (where.startsWith('/')) {
      ownBytes();
      host();
      directory();
    } else {
      const [echo, objects] = where.split('/')[0].split(',');
      network(echo);
      requests(objects);
    }
    return Payload.fromBytes(encoded(rows.join('')));
  },
  deleteManifest() {},
};
