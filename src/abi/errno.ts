// The closed list of errno names that CortexFS uses, with their Linux numbers, and the exit code for each.

const NUMBERS = {
  EPERM: 1,
  ENOENT: 2,
  ESRCH: 3,
  EINTR: 4,
  EIO: 5,
  ENXIO: 6,
  E2BIG: 7,
  ENOEXEC: 8,
  EBADF: 9,
  ECHILD: 10,
  EAGAIN: 11,
  ENOMEM: 12,
  EACCES: 13,
  EFAULT: 14,
  EBUSY: 16,
  EEXIST: 17,
  EXDEV: 18,
  ENODEV: 19,
  ENOTDIR: 20,
  EISDIR: 21,
  EINVAL: 22,
  ENFILE: 23,
  EMFILE: 24,
  ENOTTY: 25,
  ETXTBSY: 26,
  EFBIG: 27,
  ENOSPC: 28,
  ESPIPE: 29,
  EROFS: 30,
  EMLINK: 31,
  EPIPE: 32,
  ERANGE: 34,
  EDEADLK: 35,
  ENAMETOOLONG: 36,
  ENOLCK: 37,
  ENOSYS: 38,
  ENOTEMPTY: 39,
  ELOOP: 40,
  ENODATA: 61,
  EPROTO: 71,
  EOVERFLOW: 75,
  ENOTSOCK: 88,
  EMSGSIZE: 90,
  EOPNOTSUPP: 95,
  EAFNOSUPPORT: 97,
  EADDRINUSE: 98,
  EADDRNOTAVAIL: 99,
  ENETDOWN: 100,
  ENETUNREACH: 101,
  ECONNABORTED: 103,
  ECONNRESET: 104,
  ENOBUFS: 105,
  ENOTCONN: 107,
  ETIMEDOUT: 110,
  ECONNREFUSED: 111,
  EHOSTDOWN: 112,
  EHOSTUNREACH: 113,
  EALREADY: 114,
  ESTALE: 116,
  EDQUOT: 122,
  ECANCELED: 125,
  EWOULDBLOCK: 11,
} as const

/** A name of the closed errno list (`spec/README.md` conformance 6). */
export type ErrnoName = keyof typeof NUMBERS

/** Words that stand where an errno name stands but name no system error (`ctx-coreutils.md` 2.5). */
export const ERROR_WORDS = ["usage", "internal", "unmanaged", "unhealthy", "cancelled"] as const

/** One of {@link ERROR_WORDS}. */
export type ErrorWord = (typeof ERROR_WORDS)[number]

/** What the `code` of a `CtxError` may be. */
export type ErrorCode = ErrnoName | ErrorWord

/** Errno name to its positive Linux number. Node.js's own table lacks some, `EHOSTDOWN` among them. */
export const ERRNO: Readonly<Record<ErrnoName, number>> = Object.freeze(NUMBERS)

const NAMES = new Map<number, ErrnoName>()
for (const [name, number] of Object.entries(NUMBERS)) {
  if (!NAMES.has(number)) NAMES.set(number, name as ErrnoName)
}

/** The name of an errno number, positive or negative as libuv gives it; `undefined` when it is not in the list. */
export function errnoName(number: number): ErrnoName | undefined {
  return NAMES.get(Math.abs(number))
}

/** True when `code` is a name of the closed list. */
export function isErrnoName(code: unknown): code is ErrnoName {
  return typeof code === "string" && Object.hasOwn(NUMBERS, code)
}

const EXITS: Readonly<Record<string, number>> = {
  usage: 2,
  EINVAL: 2,
  EMSGSIZE: 2,
  E2BIG: 2,
  ENAMETOOLONG: 2,
  EACCES: 13,
  EPERM: 13,
  EHOSTDOWN: 69,
  ECONNREFUSED: 69,
  EBUSY: 69,
  EAGAIN: 69,
  EWOULDBLOCK: 69,
  ENOSYS: 69,
  EPROTO: 69,
  unmanaged: 69,
  unhealthy: 69,
  internal: 70,
  cancelled: 130,
  ECANCELED: 130,
  EINTR: 130,
}

/** The exit code of a program whose first failure has this code (`ctx-coreutils.md` 2.6); 1 for every code not in its table. */
export function exitCode(code: string): number {
  return Object.hasOwn(EXITS, code) ? EXITS[code]! : 1
}
