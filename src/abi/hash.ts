// Hashes that are part of a name.

const FNV_BASIS = 0xcbf29ce484222325n
const FNV_PRIME = 0x100000001b3n
const MASK = 0xffffffffffffffffn

/** 64-bit FNV-1a of the bytes of `data` (text: its UTF-8), 16 lower-case hex digits. */
export function fnv1a(data: string | Uint8Array): string {
  let hash = FNV_BASIS
  for (const byte of typeof data === "string" ? Buffer.from(data) : data) {
    hash = ((hash ^ BigInt(byte)) * FNV_PRIME) & MASK
  }
  return hash.toString(16).padStart(16, "0")
}

/** Key of a cwd in `index/by-cwd` (`session-abi.md` 10). */
export function cwdKey(cwd: string): string {
  return `cwd-${fnv1a(cwd)}`
}
