// Units as a service manager has them, by way of systemctl: it speaks to the system's and to a user's manager alike.
import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { dirname } from "node:path"
import { CtxError } from "../abi/error.js"
import { userRunDir } from "../abi/path.js"

/** Whose manager: the one of the machine, or the caller's own. */
export type Manager = "system" | "user"

/** A unit as its manager has it. */
export interface UnitState {
  unit: string
  /** ActiveState: `active`, `activating`, `deactivating`, `reloading`, `inactive`, `failed` */
  active: string
  /** 32 hex digits, of the last start when it is not up; empty for a unit that was never up */
  invocation: string
}

const SHOW_MS = 10_000
/** A stop is over when systemd has killed what would not end: TimeoutStopSec of the slowest unit, and some. */
const STOP_MS = 60_000

/** Whether a unit has a process, or a socket, that a stop would end. */
export function isUp(state: UnitState): boolean {
  return !["inactive", "failed"].includes(state.active)
}

/** Whether this manager runs: the machine was booted with it, or it serves the caller. */
export function hasManager(manager: Manager): boolean {
  if (manager === "system") return existsSync("/run/systemd/system")
  return existsSync(`${runtimeDir()}/systemd/private`)
}

/** The runtime directory of the caller; one who came by `su` or `cron` has it, but no variable that says so. */
function runtimeDir(): string {
  return process.env.XDG_RUNTIME_DIR || dirname(userRunDir(process.getuid!()))
}

interface Ended {
  code: number
  stdout: string
  stderr: string
}

function systemctl(manager: Manager, args: string[], timeoutMs: number): Promise<Ended> {
  const { DBUS_SESSION_BUS_ADDRESS } = process.env
  const own = manager === "user" ? { XDG_RUNTIME_DIR: runtimeDir(), DBUS_SESSION_BUS_ADDRESS } : {}
  const words = [`--${manager}`, "--no-pager", "--no-ask-password", ...args]
  const env = { PATH: "/usr/bin:/bin", LC_ALL: "C", SYSTEMD_COLORS: "0", ...own }
  return new Promise((resolve, reject) => {
    execFile("systemctl", words, { env, timeout: timeoutMs }, (error, stdout, stderr) => {
      if (error === null) resolve({ code: 0, stdout, stderr })
      else if (typeof error.code === "number") resolve({ code: error.code, stdout, stderr })
      else if (error.killed) reject(new CtxError("ETIMEDOUT", `systemctl ${args.join(" ")}`, { cause: error }))
      else reject(new CtxError("EHOSTDOWN", "systemctl cannot be run", { cause: error, hint: "install systemd" }))
    })
  })
}

function fault(what: string, { stderr }: Ended, hint: string): CtxError {
  const text = stderr.trim().split("\n").at(-1) || "no reason given"
  const isRefused = /access denied|authentication required|permission denied/i.test(stderr)
  return new CtxError(isRefused ? "EACCES" : "EHOSTDOWN", `${what}: ${text}`, {
    hint: isRefused ? "act as the owner of the agent or as root" : hint,
  })
}

/** The state of a unit. Errors: `EHOSTDOWN` when the manager does not answer, `ETIMEDOUT`. */
export async function readUnit(manager: Manager, unit: string): Promise<UnitState> {
  const ended = await systemctl(manager, ["show", "-p", "ActiveState", "-p", "InvocationID", "--", unit], SHOW_MS)
  const pairs = new Map(ended.stdout.split("\n").map(line => [line.replace(/=.*/s, ""), line.replace(/^[^=]*=/s, "")]))
  const active = pairs.get("ActiveState")
  if (ended.code !== 0 || active === undefined) throw fault(unit, ended, `systemctl --${manager} status ${unit}`)
  return { unit, active, invocation: pairs.get("InvocationID") ?? "" }
}

/**
 * Stops units and waits until nothing of them is left. With `isAlone` what depends on them stays. Errors: `EACCES` when the
 * caller may not, `EHOSTDOWN`, `ETIMEDOUT`.
 */
export async function stopUnits(manager: Manager, units: string[], isAlone = false): Promise<void> {
  const mode = isAlone ? ["--job-mode=ignore-dependencies"] : []
  const ended = await systemctl(manager, ["stop", ...mode, "--", ...units], STOP_MS)
  if (ended.code !== 0) throw fault(units.join(" "), ended, `systemctl --${manager} status ${units[0]}`)
}
