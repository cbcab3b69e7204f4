import {
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import * as sys from "../../src/native/sys.js"

const dir = mkdtempSync(join(tmpdir(), "cortexfs-path-"))
t.teardown(() => rmSync(dir, { recursive: true }))
const dirFd = sys.openat2(sys.AT_FDCWD, dir, sys.O_PATH | constants.O_DIRECTORY)
t.teardown(() => closeSync(dirFd))

/** The code of what `call` throws. */
function codeOf(call: () => unknown): string | undefined {
  try {
    call()
  } catch (e) {
    return (e as NodeJS.ErrnoException).code
  }
  return undefined
}

t.test("an error of a system call has the facts that Node.js gives", async t => {
  try {
    sys.openat2(dirFd, "none", constants.O_RDONLY)
    t.fail("opened")
  } catch (e) {
    t.match(e, {
      code: "ENOENT",
      errno: -2,
      syscall: "openat2",
      path: "none",
      message: "ENOENT: No such file or directory, openat2 'none'",
    })
    t.ok(e instanceof Error)
  }
})

t.test("a name that holds NUL and an argument of another type are EINVAL", async t => {
  t.equal(
    codeOf(() => sys.openat2(dirFd, "a\0b", 0)),
    "EINVAL",
  )
  t.equal(
    codeOf(() => sys.mkdirat(dirFd, 7 as never, 0o755)),
    "EINVAL",
  )
  t.equal(
    codeOf(() => sys.mkdirat("x" as never, "a", 0o755)),
    "EINVAL",
  )
  t.equal(
    codeOf(() => sys.mkdirat(1.5, "a", 0o755)),
    "EINVAL",
  )
  t.equal(
    codeOf(() => sys.mkdirat(2 ** 40, "a", 0o755)),
    "EINVAL",
  )
})

t.test("openat2 holds a walk below its directory and away from links", async t => {
  mkdirSync(join(dir, "sub"))
  writeFileSync(join(dir, "sub/f"), "x")
  symlinkSync("sub", join(dir, "link"))
  symlinkSync("/etc", join(dir, "out"))
  const open = (path: string, resolve: number) =>
    codeOf(() => closeSync(sys.openat2(dirFd, path, constants.O_RDONLY, 0, resolve)))
  t.equal(open("link/f", sys.RESOLVE_BENEATH), undefined)
  t.equal(open("link/f", sys.RESOLVE_NO_SYMLINKS), "ELOOP")
  t.equal(open("out/hosts", sys.RESOLVE_BENEATH), "EXDEV")
  t.equal(open("../x", sys.RESOLVE_BENEATH), "EXDEV")
  t.equal(
    open("sub/f", sys.RESOLVE_BENEATH | sys.RESOLVE_NO_SYMLINKS | sys.RESOLVE_NO_MAGICLINKS | sys.RESOLVE_NO_XDEV),
    undefined,
  )
  const fd = sys.openat2(dirFd, "made", constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY, 0o640)
  t.match(readFileSync(`/proc/self/fdinfo/${fd}`, "utf8"), /flags:\t02\d+1\n/, "close-on-exec")
  closeSync(fd)
  t.equal(statSync(join(dir, "made")).mode & 0o777, 0o640 & ~process.umask())
})

t.test("renameat2 refuses a taken name with RENAME_NOREPLACE and swaps with RENAME_EXCHANGE", async t => {
  writeFileSync(join(dir, "a"), "a")
  writeFileSync(join(dir, "b"), "b")
  t.equal(
    codeOf(() => sys.renameat2(dirFd, "a", dirFd, "b", sys.RENAME_NOREPLACE)),
    "EEXIST",
  )
  sys.renameat2(dirFd, "a", dirFd, "b", sys.RENAME_EXCHANGE)
  t.equal(readFileSync(join(dir, "a"), "utf8"), "b")
  sys.renameat2(dirFd, "a", dirFd, "c", sys.RENAME_NOREPLACE)
  t.equal(readFileSync(join(dir, "c"), "utf8"), "b")
})

t.test("directories, links and files are made, read and removed by descriptor", async t => {
  sys.mkdirat(dirFd, "d", 0o700)
  t.equal(
    codeOf(() => sys.mkdirat(dirFd, "d", 0o700)),
    "EEXIST",
  )
  sys.symlinkat("/nowhere", dirFd, "s")
  t.equal(sys.readlinkat(dirFd, "s").toString(), "/nowhere")
  t.equal(readlinkSync(join(dir, "s")), "/nowhere")
  writeFileSync(join(dir, "one"), "1")
  sys.linkat(dirFd, "one", dirFd, "two")
  t.equal(sys.fstatat(dirFd, "two").nlink, 2n)
  t.equal(
    codeOf(() => sys.unlinkat(dirFd, "d")),
    "EISDIR",
  )
  t.equal(
    codeOf(() => sys.unlinkat(dirFd, "two", { dir: true })),
    "ENOTDIR",
  )
  for (const name of ["s", "one", "two"]) sys.unlinkat(dirFd, name)
  sys.unlinkat(dirFd, "d", { dir: true })
  t.equal(
    codeOf(() => sys.fstatat(dirFd, "d")),
    "ENOENT",
  )
})

t.test("fstatat gives the facts of lstat, of the descriptor itself for an empty name", async t => {
  writeFileSync(join(dir, "f"), "12345", { mode: 0o604 })
  const facts = sys.fstatat(dirFd, "f")
  const node = statSync(join(dir, "f"), { bigint: true })
  for (const key of ["dev", "ino", "nlink", "size", "mtimeNs", "ctimeNs", "rdev"] as const)
    t.equal(facts[key], node[key], key)
  t.equal(facts.mode, Number(node.mode))
  t.equal(facts.uid, Number(node.uid))
  t.equal(sys.fstatat(dirFd, "").ino, statSync(dir, { bigint: true }).ino)
  symlinkSync("f", join(dir, "l"))
  t.equal(sys.fstatat(dirFd, "l").mode & constants.S_IFMT, constants.S_IFLNK)
})

t.test("fchmodat never follows a link and reaches an O_PATH descriptor", async t => {
  writeFileSync(join(dir, "m"), "")
  sys.fchmodat(dirFd, "m", 0o600)
  t.equal(sys.fstatat(dirFd, "m").mode & 0o777, 0o600)
  symlinkSync("m", join(dir, "ml"))
  t.equal(
    codeOf(() => sys.fchmodat(dirFd, "ml", 0o777)),
    "EOPNOTSUPP",
  )
  const fd = sys.openat2(dirFd, "m", sys.O_PATH)
  sys.fchmodat(fd, "", 0o640)
  closeSync(fd)
  t.equal(sys.fstatat(dirFd, "m").mode & 0o777, 0o640)
  sys.fchownat(dirFd, "ml", process.getuid!(), process.getgid!())
})
