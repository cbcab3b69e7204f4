// A process that uses its own mount can wait for itself for ever, and then not even SIGKILL ends it. So every path call
// of the serving process, from TypeScript or through the addon, is refused before it reaches the kernel (fuse.md 2 item 3).
import fs from "node:fs"
import { syncBuiltinESMExports } from "node:module"
import { resolve } from "node:path"
import { fileURLToPath } from "node:url"
import { CtxError } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { addon } from "../native/addon.js"
import { AT_FDCWD } from "../native/sys.js"

const mountPoints = new Set<string>()
let isInstalled = false

/** Calls of node:fs whose first argument is a path; each exists in a Sync and mostly in a callback and a promise form. */
const ONE_PATH = [
  "access",
  "appendFile",
  "chmod",
  "chown",
  "exists",
  "lchmod",
  "lchown",
  "lstat",
  "lutimes",
  "mkdir",
  "mkdtemp",
  "open",
  "openAsBlob",
  "opendir",
  "readFile",
  "readdir",
  "readlink",
  "realpath",
  "rm",
  "rmdir",
  "stat",
  "statfs",
  "truncate",
  "unlink",
  "utimes",
  "writeFile",
]
const TWO_PATHS = ["copyFile", "cp", "link", "rename"]
const ONLY_ASYNC = ["createReadStream", "createWriteStream", "watch", "watchFile"]

/** Addon functions that take names relative to a directory descriptor, by the places of those names. */
const ADDON_NAMES: Record<string, number[]> = {
  openat2: [1],
  renameat2: [1, 3],
  mkdirat: [1],
  unlinkat: [1],
  symlinkat: [2],
  readlinkat: [1],
  linkat: [1, 3],
  fstatat: [1],
  fchownat: [1],
  fchmodat: [1],
}

/** Throws `EDEADLK` when `path` lies at or under a mount point of this process; other values than paths pass. */
export function checkPath(path: unknown, syscall?: string): void {
  const text = path instanceof URL && path.protocol === "file:" ? fileURLToPath(path) : path
  if (typeof text !== "string" && !Buffer.isBuffer(text)) return
  // The process's own root and directory have other names too.
  const absolute = resolve(String(text)).replace(/^\/proc\/(?:self|thread-self|\d+)\/root(?=\/|$)/, "") || "/"
  for (const mountPoint of mountPoints) {
    if (!isAtOrBelow(absolute, mountPoint)) continue
    throw new CtxError("EDEADLK", `${absolute} lies in the mount this process serves`, {
      path: absolute,
      syscall,
      hint: "use the backing tree",
    })
  }
}

type Call = (...args: unknown[]) => unknown

function wrapSync(call: Call, name: string, places: number[]): Call {
  return Object.assign(function (this: unknown, ...args: unknown[]) {
    for (const i of places) checkPath(args[i], name)
    return Reflect.apply(call, this, args)
  }, call)
}

/** A relative name of an addon function starts at the descriptor in front of it, not at the working directory. */
function wrapNative(call: Call, name: string, places: number[]): Call {
  return function (this: unknown, ...args: unknown[]) {
    for (const i of places) {
      const isBelow = typeof args[i] === "string" && !args[i].startsWith("/") && args[i - 1] !== AT_FDCWD
      if (!isBelow) checkPath(args[i], name)
    }
    return Reflect.apply(call, this, args)
  }
}

function wrapCallback(call: Call, name: string, places: number[]): Call {
  return Object.assign(function (this: unknown, ...args: unknown[]) {
    try {
      for (const i of places) checkPath(args[i], name)
    } catch (error) {
      const callback = args.at(-1)
      if (typeof callback !== "function") throw error
      process.nextTick(() => callback(error))
      return
    }
    return Reflect.apply(call, this, args)
  }, call)
}

function wrapPromise(call: Call, name: string, places: number[]): Call {
  return async function (this: unknown, ...args: unknown[]) {
    for (const i of places) checkPath(args[i], name)
    return Reflect.apply(call, this, args)
  }
}

function install(): void {
  isInstalled = true
  const plain = fs as unknown as Record<string, Call | undefined>
  const promises = fs.promises as unknown as Record<string, Call | undefined>
  const put = (name: string, places: number[]) => {
    for (const [table, key, wrap] of [
      [plain, `${name}Sync`, wrapSync],
      [plain, name, wrapCallback],
      [promises, name, wrapPromise],
    ] as const) {
      const call = table[key]
      if (typeof call === "function") table[key] = wrap(call, name, places)
    }
  }
  for (const name of ONE_PATH) put(name, [0])
  for (const name of TWO_PATHS) put(name, [0, 1])
  put("symlink", [1])
  for (const name of ONLY_ASYNC) plain[name] = wrapSync(plain[name]!, name, [0])
  const watch = promises.watch
  if (watch) promises.watch = wrapSync(watch, "watch", [0])
  for (const realpath of [fs.realpath, fs.realpathSync] as unknown as { native: Call }[])
    realpath.native = wrapSync(realpath.native, "realpath", [0])
  const native = addon as unknown as Record<string, Call | undefined>
  for (const [name, places] of Object.entries(ADDON_NAMES)) {
    const call = native[name]
    if (call) native[name] = wrapNative(call, name, places)
  }
  process.chdir = wrapSync(process.chdir as Call, "chdir", [0]) as typeof process.chdir
  // Named imports of node:fs are copies; this makes them follow.
  syncBuiltinESMExports()
}

/** From now on path calls of this process at or under `mountPoint` (absolute, clean) fail with `EDEADLK`. */
export function enterGuard(mountPoint: string): void {
  if (!isInstalled) install()
  mountPoints.add(mountPoint)
}

/** Ends the guard of `mountPoint`, which is no mount of this process any more. */
export function leaveGuard(mountPoint: string): void {
  mountPoints.delete(mountPoint)
}
