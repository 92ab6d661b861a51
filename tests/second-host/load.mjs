// A component, made into JavaScript by jco, and an instance of it on this host.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { transpileBytes } from '@bytecodealliance/jco-transpile';
import { State, payloads, plain } from './contract.mjs';
import { files } from './files.mjs';
import { net } from './net.mjs';
import { records } from './records.mjs';

/// What makes instances of a component.
export async function load(component) {
  const options = { name: 'guest', instantiation: 'sync', noTypescript: true, tlaCompat: false, noNodejsCompat: true };
  const made = await transpileBytes(await readFile(component), options);
  const modules = new Map();
  // A file, because a module of this size is no URL.
  const folder = mkdtempSync(path.join(tmpdir(), 'second-host-'));
  const list = made.files instanceof Array ? made.files : Object.entries(made.files);
  for (const [name, bytes] of list) {
    if (name.endsWith('.wasm')) modules.set(name, new WebAssembly.Module(bytes));
    if (name.endsWith('.js')) writeFileSync(path.join(folder, 'guest.mjs'), bytes);
  }
  const { instantiate } = await import(path.join(folder, 'guest.mjs'));
  rmSync(folder, { recursive: true });
  const wasi = await shims(made.imports.some((name) => name.startsWith('wasi:')));
  return (grants) => {
    const state = new State(grants);
    const bytes = payloads(state);
    const imports = { ...wasi, ...plain(state, bytes), ...files(state, bytes), ...records(state, bytes), ...net(state, bytes) };
    return { state, exports: instantiate((name) => modules.get(name), imports) };
  };
}

/// WASI 0.2 with nothing granted: clocks, random numbers, and standard output.
async function shims(wanted) {
  if (!wanted) return {};
  const { WASIShim } = await import('@bytecodealliance/preview2-shim/instantiation');
  const { _setPreopens } = await import('@bytecodealliance/preview2-shim/filesystem').catch(() => ({}));
  _setPreopens?.({});
  return new WASIShim().getImportObject();
}
