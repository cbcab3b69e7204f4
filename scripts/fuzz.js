// `npm run fuzz -- [SECONDS]`: builds the libFuzzer target of the FUSE engine with AddressSanitizer and
// UndefinedBehaviorSanitizer, makes its seed corpus, and runs it; 60 seconds when none are given. What it finds stays in
// build-fuzz/corpus and is where the next run begins; an input that breaks the engine lies in build-fuzz/found.
import { spawnSync } from "node:child_process"
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import { ensurePackages, root, SetupFault, say } from "./setup.js"

const BUILD = join(root, "build-fuzz")

/** Numbers of the protocol (linux/fuse.h). */
const OP = {
  lookup: 1,
  forget: 2,
  getattr: 3,
  setattr: 4,
  readlink: 5,
  symlink: 6,
  mknod: 8,
  mkdir: 9,
  unlink: 10,
  rmdir: 11,
  rename: 12,
  link: 13,
  open: 14,
  read: 15,
  write: 16,
  statfs: 17,
  release: 18,
  fsync: 20,
  setxattr: 21,
  getxattr: 22,
  listxattr: 23,
  removexattr: 24,
  flush: 25,
  init: 26,
  opendir: 27,
  readdir: 28,
  releasedir: 29,
  fsyncdir: 30,
  getlk: 31,
  setlk: 32,
  setlkw: 33,
  access: 34,
  create: 35,
  interrupt: 36,
  destroy: 38,
  ioctl: 39,
  batchforget: 42,
  fallocate: 43,
  readdirplus: 44,
  rename2: 45,
  lseek: 46,
  copyrange: 47,
  tmpfile: 51,
}
const SETTLES = 16

// Indices by which an input names nodes and handles: 0 is the root and the handle 0, 1 one that nobody told, then as told.
const ROOT = 0
const DATA = 2

const text = (...names) => Buffer.from(names.map(name => `${name}\0`).join(""))
const u32 = (...values) => Buffer.from(Uint32Array.from(values).buffer)
const u64 = (...values) => Buffer.from(BigUint64Array.from(values, BigInt).buffer)
const body = (...parts) => Buffer.concat(parts)

/** One record of an input: see native/fuzz/requests.cc. */
function record(op, node, handle, bytes = Buffer.alloc(0), flags = 0) {
  return Buffer.concat([Buffer.from([OP[op], node, handle, flags, bytes.length & 255, bytes.length >> 8]), bytes])
}

const lookup = (node, name) => record("lookup", node, 0, text(name))
const open = (node, flags) => record("open", node, 0, u32(flags, 0))
const read = (node, handle, size) => record("read", node, handle, body(u64(0, 0), u32(size, 0), u64(0), u32(0, 0)))
const write = (node, handle, data) =>
  record("write", node, handle, body(u64(0, 0), u32(data.length, 0), u64(0), u32(1, 0), Buffer.from(data)))
const release = (node, handle, op = "release") => record(op, node, handle, body(u64(0), u32(0, 0), u64(0)))
const create = (node, name) => record("create", node, 0, body(u32(0o102, 0o644, 0o22, 0), text(name)))
const list = (op, node, handle) => record(op, node, handle, body(u64(0, 0), u32(4096, 0), u64(0), u32(0, 0)))

/** The seed corpus: each operation of the engine once in a place where it goes through. */
const SEEDS = {
  init: [record("init", ROOT, 0, body(u32(7, 41, 131072, 0xffffffff, 0xffffffff), Buffer.alloc(44)))],
  generated: [
    lookup(ROOT, "body"),
    record("getattr", DATA, 0, body(u32(0, 0), u64(0))),
    open(DATA, 0),
    read(DATA, 2, 64),
    release(DATA, 2),
    record("forget", DATA, 0, u64(1)),
  ],
  live: [lookup(ROOT, "live"), record("open", DATA, 0, u32(0, 0), SETTLES), read(DATA, 2, 64), release(DATA, 2)],
  link: [lookup(ROOT, "link"), record("readlink", DATA, 0), record("statfs", ROOT, 0)],
  plain: [
    lookup(ROOT, "data"),
    lookup(DATA, "a"),
    open(3, 2),
    write(3, 2, "words"),
    read(3, 2, 16),
    record("lseek", 3, 2, body(u64(0, 0), u32(3, 0))),
    record("fallocate", 3, 2, body(u64(0, 0, 4096), u32(0, 0))),
    record("fsync", 3, 2, body(u64(0), u32(1, 0))),
    record("flush", 3, 2, body(u64(0), u32(0, 0), u64(0))),
    record("setlk", 3, 2, body(u64(0, 7, 0, 0), u32(1, 9), u32(1, 0))),
    record("getlk", 3, 2, body(u64(0, 7, 0, 0), u32(1, 9), u32(0, 0))),
    release(3, 2),
  ],
  names: [
    lookup(ROOT, "data"),
    create(DATA, "n"),
    record("mkdir", DATA, 0, body(u32(0o755, 0), text("d"))),
    record("mknod", DATA, 0, body(u32(0o10644, 0, 0, 0), text("p"))),
    record("symlink", DATA, 0, text("s", "anywhere")),
    record("link", DATA, 0, body(u64(3), text("n2"))),
    record("rename", DATA, 0, body(u64(1), text("n", "m"))),
    record("rename2", DATA, 0, body(u64(1), u32(2, 0), text("m", "n2"))),
    record("unlink", DATA, 0, text("n2")),
    record("rmdir", DATA, 0, text("d")),
    record("tmpfile", DATA, 0, body(u32(0o102, 0o644, 0o22, 0), text("t"))),
  ],
  setattr: [
    lookup(ROOT, "data"),
    lookup(DATA, "a"),
    record("setattr", 3, 0, body(u32(8 | 1, 0), u64(0, 3, 0, 0, 0, 0), u32(0, 0, 0, 0o600, 0, 0, 0, 0))),
    record("getattr", 3, 0, body(u32(0, 0), u64(0))),
  ],
  listing: [
    lookup(ROOT, "data"),
    record("opendir", DATA, 0, u32(0, 0)),
    list("readdir", DATA, 2),
    list("readdirplus", DATA, 2),
    record("fsyncdir", DATA, 2, body(u64(0), u32(0, 0))),
    release(DATA, 2, "releasedir"),
    record("opendir", ROOT, 0, u32(0, 0)),
    list("readdirplus", ROOT, 3),
    record("batchforget", ROOT, 0, body(u32(2, 0), u64(1, 1, 2, 1))),
  ],
  asking: [
    lookup(ROOT, "data"),
    record("lookup", DATA, 0, text("asking"), SETTLES),
    record("lookup", 3, 0, text("c"), SETTLES),
    record("create", 3, 0, body(u32(0o102, 0o644, 0o22, 0), text("new")), SETTLES),
    record("rename2", 3, 0, body(u64(3), u32(0, 0), text("new", "newer"))),
    record("interrupt", 4, 0, u64(0)),
    record("unlink", 3, 0, text("c"), SETTLES | 8),
  ],
  xattr: [
    lookup(ROOT, "body"),
    record("getxattr", DATA, 0, body(u32(64, 0), text("user.cortexfs.kind"))),
    record("listxattr", DATA, 0, u32(4096, 0)),
    record("setxattr", DATA, 0, body(u32(1, 0), text("user.x"), Buffer.from("1"))),
    record("removexattr", DATA, 0, text("user.x")),
    record("ioctl", DATA, 0, body(u64(0), u32(0, 1), u64(0), u32(0, 0))),
    record("access", DATA, 0, u32(4, 0)),
  ],
  copy: [
    lookup(ROOT, "data"),
    lookup(DATA, "a"),
    open(3, 2),
    create(DATA, "copy"),
    record("copyrange", 3, 2, body(u64(0, 0, 4, 0, 0, 8, 0))),
    record("destroy", ROOT, 0),
  ],
}

/**
 * Builds the target and runs it over its corpus.
 * @param {string[]} limits what libFuzzer is told of its end, such as `-max_total_time=60` or `-runs=1000`
 * @param {import("node:child_process").StdioOptions} [stdio]
 * @returns {{code: number, stdout: string, stderr: string}} stdout ends with `requests N`
 */
export function runFuzz(limits, stdio = "pipe") {
  const cmake = join(root, "node_modules/.bin/cmake-js")
  const env = { ...process.env, CC: "clang", CXX: "clang++" }
  const build = [cmake, "-d", root, "-O", BUILD, "--CDFUZZ=ON", "-T", "cortexfs-fuzz"]
  const built = spawnSync(process.execPath, build, { cwd: root, encoding: "utf8", env })
  if (built.status !== 0) throw new SetupFault(`the fuzz target is not built:\n${built.stdout}${built.stderr}`)

  const [seeds, corpus, found] = ["seeds", "corpus", "found"].map(name => join(BUILD, name))
  for (const dir of [seeds, corpus, found]) mkdirSync(dir, { recursive: true })
  for (const [name, records] of Object.entries(SEEDS)) writeFileSync(join(seeds, name), Buffer.concat(records))
  // In memory where there is such a place: most of the time goes into making the tree anew.
  const work = mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "cortexfs-fuzz-"))
  try {
    const target = join(BUILD, "native/cortexfs-fuzz")
    const args = [
      corpus,
      seeds,
      `-artifact_prefix=${found}/`,
      "-handle_xfsz=0",
      "-timeout=60",
      "-max_len=4096",
      "-rss_limit_mb=2048",
    ]
    const ended = spawnSync(target, [...args, ...limits], {
      env: { CORTEXFS_FUZZ_DIR: work, UBSAN_OPTIONS: "print_stacktrace=1", PATH: process.env.PATH },
      encoding: "utf8",
      maxBuffer: 1 << 28,
      stdio,
    })
    return { code: ended.status ?? 1, stdout: ended.stdout ?? "", stderr: ended.stderr ?? "" }
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const seconds = Number(process.argv[2] ?? 60)
  if (!Number.isInteger(seconds) || seconds < 1) {
    say("usage: npm run fuzz -- [SECONDS]")
    process.exit(2)
  }
  try {
    ensurePackages(["build", "test"])
    process.exit(runFuzz([`-max_total_time=${seconds}`, "-print_final_stats=1"], "inherit").code)
  } catch (error) {
    if (!(error instanceof SetupFault)) throw error
    say(`cortexfs: ${error.message}`)
    process.exit(1)
  }
}
