import { addon } from "./addon.js"

/** `dirFd` value that stands for the working directory of the process. */
export const AT_FDCWD = -100

/** openat2(2) `resolve` bits. */
export const RESOLVE_NO_XDEV = 0x01
export const RESOLVE_NO_MAGICLINKS = 0x02
export const RESOLVE_NO_SYMLINKS = 0x04
export const RESOLVE_BENEATH = 0x08
export const RESOLVE_IN_ROOT = 0x10

/** Open flag for a descriptor that names a file without opening it; Node.js has no constant for it. */
export const O_PATH = 0o10000000

/** renameat2(2) flags. */
export const RENAME_NOREPLACE = 1
export const RENAME_EXCHANGE = 2

/** umount2(2) and mount(2) flags in use. */
export const MNT_DETACH = 2
export const MS_RDONLY = 1
export const MS_NOSUID = 2
export const MS_NODEV = 4
export const MS_NOEXEC = 8
export const MS_BIND = 4096
export const MS_REC = 16384
export const MS_PRIVATE = 1 << 18

/** Facts of one inode, as lstat; times are nanoseconds since 1970. */
export interface FileStat {
  dev: bigint
  ino: bigint
  mode: number
  nlink: bigint
  uid: number
  gid: number
  rdev: bigint
  size: bigint
  mtimeNs: bigint
  ctimeNs: bigint
}

/** The process at the other end of a local socket, as it was when it connected. */
export interface Peer {
  pid: number
  uid: number
  gid: number
}

export type LockKind = "sh" | "ex" | "un"

interface SysAddon {
  getrandom(sizeBytes: number): Buffer
  openat2(dirFd: number, path: string, flags: number, mode: number, resolve: number): number
  renameat2(oldDirFd: number, oldName: string, newDirFd: number, newName: string, flags: number): void
  mkdirat(dirFd: number, name: string, mode: number): void
  unlinkat(dirFd: number, name: string, isDir: boolean): void
  symlinkat(target: string, dirFd: number, name: string): void
  readlinkat(dirFd: number, name: string): Buffer
  linkat(oldDirFd: number, oldName: string, newDirFd: number, newName: string): void
  fstatat(dirFd: number, name: string): FileStat
  fchownat(dirFd: number, name: string, uid: number, gid: number): void
  fchmodat(dirFd: number, name: string, mode: number): void
  utimensat(dirFd: number, name: string | Buffer, ns: bigint): void
  getxattr(fd: number, name: string): Buffer
  flock(fd: number, kind: number, wait: boolean): boolean
  flockWait(fd: number, kind: number): Promise<void>
  copyRange(srcFd: number, dstFd: number, sizeBytes: number): number
  reflink(dstFd: number, srcFd: number): boolean
  syncfs(fd: number): void
  peerCred(fd: number): Peer
  peerPidfd(fd: number): number | undefined
  socketPair(): [number, number]
  pipe(): [number, number]
  memfd(name: string, data: Buffer): number
  closeOnExec(fd: number, on: boolean): void
  sdNotify(state: string): boolean
  setNofileLimit(soft: number): void
  mount(source: string, target: string, type: string, flags: number, data: string): void
  umount2(target: string, flags: number): void
  mountFlags(fd: number): number
  pidfdOpen(pid: number): number
  pidfdSignal(pidfd: number, signal: number, toGroup: boolean): boolean
  pidfdWait(pidfd: number, timeoutMs: number): Promise<boolean>
  findAccount(uid: number): Account | undefined
  probeNamespaces(uid: number, gid: number): { name: string; code: string }[]
  seccompProgram(arch: string): Buffer
  hasSeccomp(): boolean
}

const sys = addon as unknown as SysAddon
const LOCK = { sh: 1, ex: 2, un: 8 } as const

/** `sizeBytes` random bytes from the kernel (getrandom(2)). Errors: EINVAL for a size outside 0..1 MiB. */
export function getrandom(sizeBytes: number): Buffer {
  return sys.getrandom(sizeBytes)
}

/**
 * openat2(2): opens `path` below `dirFd`; O_CLOEXEC is always added. `resolve` takes RESOLVE_* bits.
 * Returns a descriptor the caller owns. Errors: the kernel's (ENOENT, ELOOP for a refused link, EXDEV for an escape …).
 */
export function openat2(dirFd: number, path: string, flags: number, mode = 0, resolve = 0): number {
  return sys.openat2(dirFd, path, flags, mode, resolve)
}

/** renameat2(2) with RENAME_* flags. Errors: EEXIST with RENAME_NOREPLACE on a taken name, the kernel's otherwise. */
export function renameat2(oldDirFd: number, oldName: string, newDirFd: number, newName: string, flags = 0): void {
  sys.renameat2(oldDirFd, oldName, newDirFd, newName, flags)
}

/** mkdirat(2). Errors: EEXIST, ENOENT, EACCES … */
export function mkdirat(dirFd: number, name: string, mode: number): void {
  sys.mkdirat(dirFd, name, mode)
}

/** unlinkat(2); `dir` removes an empty directory. Errors: ENOENT, EISDIR, ENOTDIR, ENOTEMPTY … */
export function unlinkat(dirFd: number, name: string, options: { dir?: boolean } = {}): void {
  sys.unlinkat(dirFd, name, options.dir === true)
}

/** symlinkat(2): makes `name` a link with the text `target`. Errors: EEXIST … */
export function symlinkat(target: string, dirFd: number, name: string): void {
  sys.symlinkat(target, dirFd, name)
}

/** readlinkat(2): the text of a link as bytes; an empty `name` reads `dirFd` itself. Errors: EINVAL when it is no link. */
export function readlinkat(dirFd: number, name: string): Buffer {
  return sys.readlinkat(dirFd, name)
}

/** linkat(2) without following a link at the old name. Errors: EEXIST, EXDEV … */
export function linkat(oldDirFd: number, oldName: string, newDirFd: number, newName: string): void {
  sys.linkat(oldDirFd, oldName, newDirFd, newName)
}

/** Facts of `name` below `dirFd`, never following a link at its end; an empty `name` means `dirFd` itself. Errors: ENOENT … */
export function fstatat(dirFd: number, name: string): FileStat {
  return sys.fstatat(dirFd, name)
}

/** fchownat(2) that never follows a link; -1 leaves an id. An empty `name` means `dirFd` itself. */
export function fchownat(dirFd: number, name: string, uid: number, gid: number): void {
  sys.fchownat(dirFd, name, uid, gid)
}

/** Changes the mode of `name` and never follows a link: EOPNOTSUPP when it is one. */
export function fchmodat(dirFd: number, name: string, mode: number): void {
  sys.fchmodat(dirFd, name, mode)
}

/** Sets atime and mtime of `name` to `ns` (nanoseconds since the epoch), of a link itself. An empty `name` means `dirFd`. */
export function utimensat(dirFd: number, name: string | Buffer, ns: bigint): void {
  sys.utimensat(dirFd, name, ns)
}

/** Value of an extended attribute of an open file. Errors: ENODATA, EOPNOTSUPP … */
export function getxattr(fd: number, name: string): Buffer {
  return sys.getxattr(fd, name)
}

/**
 * flock(2): takes a shared or exclusive lock or gives it back. Returns false when the lock is held elsewhere.
 * With `wait` the calling thread blocks; outside of start-up use `flockWait`.
 */
export function flock(fd: number, kind: LockKind, options: { wait?: boolean } = {}): boolean {
  return sys.flock(fd, LOCK[kind], options.wait === true)
}

/** flock(2) that waits on the thread pool. Resolves when the lock is held; the descriptor must stay open until then. */
export function flockWait(fd: number, kind: "sh" | "ex"): Promise<void> {
  return sys.flockWait(fd, LOCK[kind])
}

/**
 * copy_file_range(2) from and to the current offsets until `sizeBytes` are copied or the source ends; falls back to
 * read and write where the file systems refuse. Returns the bytes copied. Errors: ENOSPC, EIO …
 */
export function copyRange(srcFd: number, dstFd: number, sizeBytes: number): number {
  return sys.copyRange(srcFd, dstFd, sizeBytes)
}

/** FICLONE: makes `dstFd` share the blocks of `srcFd`. False when the file system cannot. */
export function reflink(dstFd: number, srcFd: number): boolean {
  return sys.reflink(dstFd, srcFd)
}

/** syncfs(2) of the file system that holds `fd`. Errors: EIO, ENOSPC. */
export function syncfs(fd: number): void {
  sys.syncfs(fd)
}

/** SO_PEERCRED of a connected local socket. Errors: ENOTSOCK, EBADF. */
export function peerCred(fd: number): Peer {
  return sys.peerCred(fd)
}

/** SO_PEERPIDFD: a descriptor that names exactly the peer process; undefined on kernels before 6.5. */
export function peerPidfd(fd: number): number | undefined {
  return sys.peerPidfd(fd)
}

/** A connected pair of local stream sockets, close-on-exec. */
export function socketPair(): [number, number] {
  return sys.socketPair()
}

/** A pipe, close-on-exec: [read end, write end]. Errors: EMFILE. */
export function pipe(): [number, number] {
  return sys.pipe()
}

/** An anonymous sealed file that holds `data`, offset 0, close-on-exec. Errors: EMFILE, ENOMEM. */
export function memfd(name: string, data: Buffer): number {
  return sys.memfd(name, data)
}

/** Sets or clears close-on-exec. Errors: EBADF. */
export function closeOnExec(fd: number, on: boolean): void {
  sys.closeOnExec(fd, on)
}

/**
 * Sends one notification to the service manager. False when NOTIFY_SOCKET is unset.
 * Errors: EINVAL for an unusable address, the socket's own errors.
 */
export function sdNotify(state: string): boolean {
  return sys.sdNotify(state)
}

/**
 * Descriptors passed by socket activation, from 3 on, set close-on-exec. Empty when LISTEN_PID is not this process.
 * LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES leave the environment of the process.
 */
export function listenFds(): number[] {
  const { LISTEN_PID, LISTEN_FDS } = process.env
  for (const name of ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"]) delete process.env[name]
  const count = Number(LISTEN_FDS)
  if (LISTEN_PID !== String(process.pid) || !Number.isInteger(count) || count < 0 || count > 1024) return []
  const fds = Array.from({ length: count }, (_, i) => 3 + i)
  for (const fd of fds) sys.closeOnExec(fd, true)
  return fds
}

/** Sets the soft limit of open descriptors, at most the hard one. Errors: EINVAL, EPERM. */
export function setNofileLimit(soft: number): void {
  sys.setNofileLimit(soft)
}

/** mount(2). Errors: EPERM, EBUSY, ENOENT, ENODEV … */
export function mount(source: string, target: string, type: string, flags: number, data = ""): void {
  sys.mount(source, target, type, flags, data)
}

/** umount2(2). Errors: EINVAL when nothing is mounted there, EBUSY, EPERM. */
export function umount2(target: string, flags = 0): void {
  sys.umount2(target, flags)
}

/** The MS_* bits (MS_NOEXEC …) of the mount that holds `fd`, from fstatfs(2). Works on O_PATH descriptors. */
export function mountFlags(fd: number): number {
  return sys.mountFlags(fd)
}

/** pidfd_open(2): a descriptor that names exactly this process. Errors: ESRCH. */
export function pidfdOpen(pid: number): number {
  return sys.pidfdOpen(pid)
}

/**
 * Sends `signal` through a pidfd, to the process or to the process group it leads. False when the process is gone.
 * Errors: EPERM.
 */
export function pidfdSignal(pidfd: number, signal: number, options: { group?: boolean } = {}): boolean {
  return sys.pidfdSignal(pidfd, signal, options.group === true)
}

/** Waits on the thread pool until the process of a pidfd has ended. False when `timeoutMs` passed first. */
export function pidfdWait(pidfd: number, timeoutMs: number): Promise<boolean> {
  return sys.pidfdWait(pidfd, timeoutMs)
}

/** One account of the host: primary group and every supplementary group but that one. */
export interface Account {
  name: string
  gid: number
  groups: number[]
}

/** The account of `uid`; undefined when it has none. Blocks on the host's name service. */
export function findAccount(uid: number): Account | undefined {
  return sys.findAccount(uid)
}

/**
 * Tries, in a child process with this identity, each namespace a sandbox needs. Returns the refused ones with the
 * errno name; empty when all are to be had (agent-tool-security 6).
 */
export function probeNamespaces(uid: number, gid: number): { name: string; code: string }[] {
  return sys.probeNamespaces(uid, gid)
}

/**
 * The seccomp filter of agent-tool-security 7.6 as an array of `struct sock_filter`, for `x64` or `arm64`.
 * Errors: ENOSYS for another machine.
 */
export function seccompProgram(arch: string = process.arch): Buffer {
  return sys.seccompProgram(arch)
}

/** Says whether the kernel can load a filter that kills a process and answers errnos. */
export function hasSeccomp(): boolean {
  return sys.hasSeccomp()
}
