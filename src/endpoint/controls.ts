import { closeSync, constants, lstatSync, mkdtempSync, openSync, readdirSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import type { OpenControl } from "../agent/control.js"
import { flock } from "../native/sys.js"
import { ControlSocket } from "./control.js"

const PREFIX = "cortexfs-agent-"

/**
 * The directory that holds the control sockets of a runtime's runs: its owner's alone, away from every tree that a
 * sandbox can see. A lock on it tells a living one from what a killed runtime left.
 */
export class Controls {
  private readonly dir: string
  private readonly lockFd: number
  private opened = 0

  /** Makes the directory and clears those that killed runtimes of this uid left. */
  constructor() {
    clearDead()
    this.dir = mkdtempSync(join(tmpdir(), PREFIX))
    this.lockFd = openDir(this.dir)
    flock(this.lockFd, "ex")
  }

  /** Opens the control socket of one run. */
  readonly open: OpenControl = (facts, serveModel) =>
    ControlSocket.open(join(this.dir, String(++this.opened)), facts, serveModel)

  /** Removes the directory. */
  remove(): void {
    rmSync(this.dir, { recursive: true, force: true })
    closeSync(this.lockFd)
  }
}

function openDir(path: string): number {
  return openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW)
}

function clearDead(): void {
  for (const name of readdirSync(tmpdir())) {
    if (!name.startsWith(PREFIX)) continue
    const path = join(tmpdir(), name)
    try {
      if (lstatSync(path).uid !== process.geteuid!()) continue
      const fd = openDir(path)
      try {
        if (flock(fd, "ex")) rmSync(path, { recursive: true, force: true })
      } finally {
        closeSync(fd)
      }
    } catch {
      // Gone meanwhile, or not a directory of ours: nothing to clear.
    }
  }
}
