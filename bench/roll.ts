// A roll beside 5 GB of session history in 200,000 files against one beside an empty home. The files are sparse: a roll
// must not read them, so what is in them takes no part.
import { execFileSync } from "node:child_process"
import { mkdirSync, readlinkSync, rmSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { installedPrefix, makeDir, OWNER } from "../test/harness/product.js"
import { runProgram } from "../test/harness/program.js"

/** A row; `goal` is the highest ratio that is wanted. */
export interface Row {
  measure: string
  unit: string
  ours: number
  base: number
  ratio: number
  goal: number
}

const ROUNDS = 15
const SESSIONS = 20_000
const FILES = 10
const HISTORY = 5e9

async function update(storage: string): Promise<void> {
  const ctx = join(await installedPrefix(), "bin/ctx")
  const command = [ctx, "storage", "update", "--prune", "--owner", String(OWNER), storage]
  const ended = await runProgram(command, { uid: 0, gid: 0 })
  if (ended.code !== 0) throw new Error(ended.stderr)
}

/** Milliseconds of one roll, with what the command itself costs. */
async function roll(storage: string): Promise<number> {
  rmSync(join(storage, readlinkSync(join(storage, "current")), "bin/ctx"))
  execFileSync("sync", ["-f", storage])
  const began = performance.now()
  await update(storage)
  return performance.now() - began
}

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1]!
}

function writeHistory(dataRoot: string): void {
  const sessions = join(dataRoot, `home/${OWNER}/agent/coder/session`)
  for (let i = 0; i < SESSIONS; i++) {
    mkdirSync(join(sessions, `s${i}`))
    for (let j = 0; j < FILES; j++) {
      const path = join(sessions, `s${i}/f${j}`)
      writeFileSync(path, "")
      truncateSync(path, HISTORY / SESSIONS / FILES)
    }
  }
}

/** Rows of this bench: the whole command, rolls of both storages in turn. */
export async function measure(): Promise<Row[]> {
  const [full, empty] = [makeDir("cortexfs-bench"), makeDir("cortexfs-bench")]
  const storages = [full, empty].map(dir => join(dir, "data/storage"))
  for (const storage of storages) {
    mkdirSync(join(storage, ".."), { mode: 0o755 })
    await update(storage)
  }
  writeHistory(join(full, "data"))
  for (const storage of storages) await roll(storage)
  const times: number[][] = [[], []]
  for (let i = 0; i < ROUNDS; i++) {
    for (const side of i % 2 === 0 ? [0, 1] : [1, 0]) times[side]!.push(await roll(storages[side]!))
  }
  const [ours, base] = times.map(median) as [number, number]
  const ratio = Math.round((ours / base) * 100) / 100
  return [{ measure: "roll beside 5 GB", unit: "ms", ours, base, ratio, goal: 1.2 }]
}
