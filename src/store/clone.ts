import {
  type BigIntStats,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  lchownSync,
  mkdirSync,
  openSync,
  readlinkSync,
  readSync,
  symlinkSync,
} from "node:fs"
import { CtxError } from "../abi/error.js"
import { CONTROL_MAX } from "../abi/limit.js"
import { copyRange, reflink, utimensat } from "../native/sys.js"
import { readWhole, writeAll } from "./file.js"
import { reissueReceipt } from "./receipt.js"
import { at, DEPTH_MAX, hasMountBelow, listNames, openDirAt, statAt } from "./walk.js"

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK } = constants
const LOG_MAX = 1024 * 1024
const META = /^agent\/[^/]+\.d\/meta\.json$/
const KEPT_BITS = 0o1777n

interface Place {
  srcFd: number
  dstFd: number
  /** path below the tree, for error texts and to know an object's log */
  path: string
  dev: bigint
  check: () => Promise<void>
}

function fault(path: string, why: string): CtxError {
  return new CtxError("EINVAL", `${path}: ${why}`, { path, hint: "remove it, then run again" })
}

/** Owner, mode without set-id bits, mtime. Owner first: it clears bits that the mode sets. */
function keepFacts(fd: number, stat: BigIntStats): void {
  const now = fstatSync(fd, { bigint: true })
  if (now.uid !== stat.uid || now.gid !== stat.gid) fchownSync(fd, Number(stat.uid), Number(stat.gid))
  fchmodSync(fd, Number(stat.mode & KEPT_BITS))
  utimensat(fd, "", stat.mtimeNs)
}

/** The newest whole lines of a log, at most 1 MiB. */
function readNewest(srcFd: number, size: number): Buffer {
  const tail = Buffer.alloc(LOG_MAX + 1)
  let got = 0
  while (got < tail.length) {
    const read = readSync(srcFd, tail, got, tail.length - got, size - tail.length + got)
    if (read === 0) break
    got += read
  }
  // The byte before the last MiB tells whether a line begins there.
  const lf = tail.subarray(0, got).indexOf(0x0a)
  return lf < 0 ? Buffer.alloc(0) : tail.subarray(lf + 1, got)
}

/** What is carried of an agent's meta.json instead of its bytes. The directories are the parents of both files. */
function readReissued(place: Place, srcFd: number, path: string, size: number): Buffer | undefined {
  if (!META.test(path) || size > CONTROL_MAX) return undefined
  const [from, to] = [fstatSync(place.srcFd, { bigint: true }), fstatSync(place.dstFd, { bigint: true })]
  return reissueReceipt(readWhole(srcFd, CONTROL_MAX, path), from, to)
}

function cloneFile(place: Place, name: Buffer, path: string): void {
  const srcFd = openSync(at(place.srcFd, name), O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
  try {
    const stat = fstatSync(srcFd, { bigint: true })
    if (!stat.isFile()) throw fault(path, "not a regular file any more")
    const dstFd = openSync(at(place.dstFd, name), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
    try {
      const size = Number(stat.size)
      const reissued = readReissued(place, srcFd, path, size)
      if (reissued) writeAll(dstFd, reissued)
      else if (size > LOG_MAX && /^(?:agent|tool)\/[^/]+\.d\/log$/.test(path)) writeAll(dstFd, readNewest(srcFd, size))
      else if (size > 0 && !reflink(dstFd, srcFd)) copyRange(srcFd, dstFd, size)
      keepFacts(dstFd, stat)
    } finally {
      closeSync(dstFd)
    }
  } finally {
    closeSync(srcFd)
  }
}

function cloneLink(place: Place, name: Buffer, stat: BigIntStats): void {
  const path = at(place.dstFd, name)
  symlinkSync(readlinkSync(at(place.srcFd, name), { encoding: "buffer" }), path)
  if (process.geteuid!() === 0) lchownSync(path, Number(stat.uid), Number(stat.gid))
  utimensat(place.dstFd, name, stat.mtimeNs)
}

async function cloneDir(place: Place, name: Buffer, path: string, depth: number): Promise<void> {
  const srcFd = openDirAt(place.srcFd, name)
  try {
    const stat = fstatSync(srcFd, { bigint: true })
    if (stat.dev !== place.dev) throw new CtxError("EXDEV", `${path}: another file system is mounted here`, { path })
    mkdirSync(at(place.dstFd, name), 0o700)
    const dstFd = openDirAt(place.dstFd, name)
    try {
      await cloneEntries({ ...place, srcFd, dstFd, path: `${path}/` }, depth + 1)
      keepFacts(dstFd, stat)
    } finally {
      closeSync(dstFd)
    }
  } finally {
    closeSync(srcFd)
  }
}

async function cloneEntries(place: Place, depth: number): Promise<void> {
  for (const name of listNames(place.srcFd)) {
    await place.check()
    const path = `${place.path}${name}`
    if (depth > DEPTH_MAX) throw fault(path, `deeper than ${DEPTH_MAX} directories`)
    const stat = statAt(place.srcFd, name)
    if (stat.isDirectory()) await cloneDir(place, name, path, depth)
    else if (stat.isFile()) cloneFile(place, name, path)
    else if (stat.isSymbolicLink()) cloneLink(place, name, stat)
    else if (!stat.isSocket()) throw fault(path, "a FIFO or device has no place in a generation")
  }
}

/**
 * Copies what is in one open directory into another, empty one (rolling-upgrades.md 7.2): reflinks where the file
 * system has them; owner, group, mode without set-id bits and mtime (to the microsecond) are kept; sockets are left
 * out; no link is followed, no file system boundary crossed, the source not written. `check` is awaited before each
 * entry and may throw.
 * Errors: `EINVAL` for a FIFO or device, `EXDEV`, `ENOSPC` and others of the system calls.
 */
export async function cloneTree(srcFd: number, dstFd: number, check: () => Promise<void>): Promise<void> {
  const dev = fstatSync(srcFd, { bigint: true }).dev
  const path = readlinkSync(`/proc/self/fd/${srcFd}`)
  if (hasMountBelow(path)) {
    throw new CtxError("EXDEV", `${path}: something is mounted in it`, { path, hint: "unmount it, then run again" })
  }
  await cloneEntries({ srcFd, dstFd, path: "", dev, check }, 1)
}
