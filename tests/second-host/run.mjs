// Run a component on this host: `node run.mjs edges|rows|check COMPONENT URI [DIRECTORY] [SERVER,SERVER] [NAME=SECRET,..]`.
//
// `edges` prints what the guest of this name found, and `rows` what the guests `calls` found. `check` asks a backend for what the contract asks of `store`, and prints `ok` or what was wrong.
import { load } from './load.mjs';

const [what, component, uri, directory, servers, secrets] = process.argv.slice(2);
const grants = {
  directory: directory || undefined,
  servers: servers ? servers.split(',') : [],
  secrets: Object.fromEntries((secrets ?? '').split(',').filter(Boolean).map((pair) => pair.split('='))),
};

const instantiate = await load(component);

/// An interface of the contract under any version 1.x.
function exported(exports, name) {
  const found = Object.keys(exports).find((key) => new RegExp(`^kv-store:backend/${name}@1\\.\\d+\\.\\d+$`).test(key));
  return exports[found];
}

/// One opened instance, whose calls have their items and answers of the contract's shape.
function open() {
  const { state, exports } = instantiate(grants);
  const store = exported(exports, 'store');
  const call = (given, run) => state.call(given, run);
  const hashes = (list) => ({ width: list[0].length, bytes: Buffer.concat(list) });
  const keys = (list) => list.map((hash) => `chunk ${hash.toString('hex')}`);
  /// Ask on until each item is answered.
  const whole = (list, ask) => {
    const answers = [];
    while (answers.length < list.length) {
      const rest = list.slice(answers.length);
      const some = ask(rest);
      if (some.length < 1 || some.length > rest.length) throw new Error(`answered ${some.length} items to a batch of ${rest.length}`);
      answers.push(...some);
    }
    return answers;
  };
  const data = (payload) => payload && Buffer.from(payload.data);
  const features = call({}, () => store.open(uri, []));
  return {
    state,
    features,
    maintenance: exported(exports, 'maintenance'),
    exists: (list) => whole(list, (rest) => call({}, () => store.exists(hashes(rest)))),
    put: (chunks, replace = false) =>
      whole(chunks, (rest) => {
        const list = rest.map(([hash]) => hash);
        const items = rest.map(([, bytes]) => bytes);
        const lens = BigUint64Array.from(items.map((bytes) => BigInt(bytes.length)));
        return call({ items, keys: keys(list) }, () => store.putChunks(hashes(list), lens, replace));
      }),
    get: (list) =>
      whole(list, (rest) =>
        call({ wanted: rest.length }, () =>
          store.getChunks(hashes(rest)).map((found) => (found.tag === 'found' ? { tag: 'found', data: data(found.val) } : found)),
        ),
      ),
    remove: (list) => whole(list, (rest) => call({ keys: keys(rest) }, () => store.deleteChunks(hashes(rest)))),
    commit: (fresh, name, bytes) => {
      const widths = [...new Set(fresh.map((hash) => hash.length))];
      const lists = widths.map((width) => hashes(fresh.filter((hash) => hash.length === width)));
      // With the place of a generation, which a storage system may write.
      const item = name === undefined ? undefined : Buffer.concat([bytes, Buffer.alloc(16)]);
      const manifest = item && { name, len: BigInt(item.length) };
      return call({ items: item ? [item] : [], keys: [`manifest ${name}`] }, () => store.commit(lists, manifest));
    },
    manifest: (name) => call({}, () => data(store.getManifest(name))?.subarray(0, -16)),
    whole: (name) => call({}, () => data(store.getManifest(name))),
    removeManifest: (name) => call({ keys: [`manifest ${name}`] }, () => store.deleteManifest(name)),
  };
}

function edges() {
  const guest = open();
  const chunks = [Buffer.from('hash-one'), Buffer.from('hash-two')];
  const steps = [
    () => guest.put([[chunks[0], Buffer.from('first')], [chunks[1], Buffer.alloc(0)]]),
    () => guest.get(chunks),
    () => guest.exists(chunks),
    () => guest.commit(chunks, 'manifest', Buffer.from('a manifest')),
  ];
  for (const step of steps) step();
  process.stdout.write(guest.whole('rows'));
}

function rows() {
  process.stdout.write(open().whole('rows'));
}

function expect(what, got, wanted) {
  const [shown, expected] = [got, wanted].map((value) => JSON.stringify(value, (_, it) => (typeof it === 'bigint' ? `${it}` : it)));
  if (shown !== expected) throw new Error(`${what}: expected ${expected}, got ${shown}`);
}

function check() {
  let guest = open();
  const { holdsData, durable, shared, evicts, wantsFresh } = guest.features.properties;
  const toldFresh = durable || evicts || wantsFresh;
  const salt = Buffer.from(`${process.pid}-${Date.now()}`.padEnd(24, '.'));
  const hash = (width, n) => Buffer.concat([Buffer.from([n]), salt, Buffer.alloc(64)]).subarray(0, width);
  const bytes = (n) => Buffer.alloc(1000 * n, `${n}`);
  const tags = (answers) => answers.map(({ tag }) => tag);
  const name = `second host/é/${salt}`;
  for (const width of [8, 16, 33]) {
    const chunks = [0, 1, 2, 3, 4].map((n) => [hash(width, n), bytes(n)]);
    const all = chunks.map(([hash]) => hash);
    expect('exists of nothing', tags(guest.exists(all)), all.map(() => 'absent'));
    expect('get-chunks of nothing', tags(guest.get(all)), all.map(() => 'missing'));
    expect('put-chunks', tags(guest.put(chunks)), all.map(() => 'stored'));
    expect('exists', tags(guest.exists(all)), all.map(() => 'present'));
    expect('get-chunks', guest.get(all).map(({ data }) => data?.toString()), chunks.map(([, bytes]) => bytes.toString()));
    expect('put-chunks with replace', tags(guest.put([[all[1], bytes(3)]], true)), ['stored']);
    expect('get-chunks of what was replaced', guest.get([all[1]])[0].data.toString(), bytes(3).toString());
    expect('commit', guest.commit(toldFresh ? all : [], name, bytes(width)).tag, 'published');
    expect('get-manifest', guest.manifest(name)?.toString(), bytes(width).toString());
    expect('a commit without a manifest', guest.commit(toldFresh ? all : [], undefined).tag, 'published');
    const removed = tags(guest.remove([all[0], all[4]]));
    if (removed.every((tag) => tag === 'gone')) {
      expect('exists after a removal', tags(guest.exists(all)), ['absent', 'present', 'present', 'present', 'absent']);
      if (toldFresh) {
        // A backend may miss a manifest from when a chunk that it names is gone.
        expect('commit over what is there', guest.commit(all.slice(1, 4), name, bytes(width)).tag, 'published');
        const absent = guest.commit(all, name, bytes(1));
        expect('commit over what is gone', absent.tag, 'absent');
        const gone = absent.val.flatMap(({ width, bytes }) => Array.from({ length: bytes.length / width }, (_, n) => bytes[n * width]));
        expect('the chunks that are gone', gone.sort(), [0, 4]);
        expect('the manifest after that', guest.manifest(name)?.toString(), bytes(width).toString());
      }
    }
  }
  expect('a manifest whose name begins with NUL, and was never listed', guest.manifest(`\0${salt}`), undefined);
  if (guest.maintenance) {
    let [after, found] = [undefined, 0];
    do {
      const page = guest.state.call({}, () => guest.maintenance.listChunks(after, 3));
      if (page.entries.length > 3) throw new Error(`a page of at most 3 chunks has ${page.entries.length}`);
      found += page.entries.length;
      after = page.next;
    } while (after !== undefined);
    if (found < 9) throw new Error(`list-chunks has ${found} chunks, and 9 are there`);
  }
  // Another instance sees the same store.
  if (!holdsData && (shared || durable)) {
    guest = open();
    expect('a chunk in another instance', guest.get([hash(16, 2)])[0].data?.toString(), bytes(2).toString());
    expect('a manifest in another instance', guest.manifest(name)?.toString(), bytes(33).toString());
  }
  guest.removeManifest(name);
  expect('a manifest that was removed', guest.manifest(name), undefined);
  guest.removeManifest(name);
  console.log('ok');
}

try {
  ({ edges, rows, check })[what]();
  process.exit(0);
} catch (thrown) {
  const shown = thrown.payload ?? thrown;
  console.log(shown.kind ? `${shown.kind}: ${shown.message}` : thrown.stack);
  process.exit(1);
}
