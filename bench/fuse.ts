// The mount against its own backing directory: what a client pays for going through /ctx.
import { execFileSync } from "node:child_process"
import { chownSync, mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { makeStack, OWNER, ROOT } from "../test/harness/product.js"
import { runProgram } from "../test/harness/program.js"

export interface Row {
  measure: string
  unit: string
  ours: number
  base: number
  /** ours ÷ base, lower is better. */
  ratio: number
  /** The highest ratio that is wanted. */
  goal?: number
}

const FILES = 1000
const ROUNDS = 60

/** Rows of this bench: stat, open+read+close and readdir of a directory of 1,000 files of 1 KiB. */
export async function measure(): Promise<Row[]> {
  const client = join(ROOT, "build/bench-client")
  execFileSync("g++", ["-O2", "-std=c++17", "-o", client, join(ROOT, "bench/client.cc")])
  const stack = await makeStack()
  try {
    await stack.startHost()
    const below = `home/${OWNER}/agent/coder/data/bench`
    const base = join(stack.dataRoot, below)
    mkdirSync(base)
    for (let i = 0; i < FILES; i++) writeFileSync(join(base, `f${i}`), Buffer.alloc(1024, 97))
    chownSync(base, OWNER, OWNER)
    const copy = join(stack.dir, "client")
    execFileSync("install", ["-m", "755", client, copy])
    const rows: Row[] = []
    for (const name of ["stat", "open+read+close", "readdir"]) {
      const command = [copy, name, join(stack.ctx, below), base, String(FILES), String(ROUNDS)]
      const { code, stdout, stderr } = await runProgram(command, { uid: 0, gid: 0, timeoutMs: 120_000 })
      if (code !== 0) throw new Error(`${name}: ${stderr}`)
      const { ours, base: plain } = JSON.parse(stdout) as { ours: number; base: number }
      rows.push({ measure: name, unit: "us", ours, base: plain, ratio: Math.round((ours / plain) * 100) / 100 })
    }
    return rows
  } finally {
    await stack.stop()
  }
}
