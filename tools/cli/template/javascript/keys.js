// Hashes and names as keys that any storage system takes.
import { sha256 } from 'kv-store:backend/payloads@1.1.0';

const LONGEST = 200;
const DIGEST = 2 + 64;

export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

// The hashes of a batch.
export function split({ width, bytes }) {
  return Array.from({ length: bytes.length / width }, (_, n) => bytes.slice(n * width, (n + 1) * width));
}

// The key of a manifest's name, at most 200 of `a-z 0-9 _ - . %`: two names never meet, also where the storage system ignores case, and no
// key begins with a dot. Any other byte is `%` and two hex digits. A longer key is cut, and ends in `%-` and the SHA-256 of the name.
export function escape(name) {
  const bytes = new TextEncoder().encode(name);
  let key = '';
  let cut = 0;
  bytes.forEach((byte, n) => {
    const char = String.fromCharCode(byte);
    key += /[a-z0-9_-]/.test(char) || (char === '.' && n > 0) ? char : `%${byte.toString(16).padStart(2, '0')}`;
    if (key.length <= LONGEST - DIGEST) cut = key.length;
  });
  if (key.length <= LONGEST) return key;
  return `${key.slice(0, cut)}%-${hex(sha256([{ tag: 'bytes', val: bytes }]))}`;
}
