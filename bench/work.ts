// A day's work in an agent's data directory through the host view, against the same on the backing file system.
import { mkdirSync } from "node:fs"
import { join } from "node:path"
import { makeProject, makeRepository, work } from "../test/fs/fixture/work.js"
import { makeStack, OWNER } from "../test/harness/product.js"
import { runProgram } from "../test/harness/program.js"
import type { Row } from "./fuse.js"

const ROUNDS = 5

/** Rows of this bench: git clone, status and fsck of this checkout's sources, npm ci of 300 packages, grep -r, rm -rf. */
export async function measure(): Promise<Row[]> {
  const stack = await makeStack()
  try {
    makeRepository(join(stack.dir, "repository"))
    makeProject(stack.dir)
    await stack.startHost({ timeoutMs: 1_200_000 })
    const below = `home/${OWNER}/agent/coder/data`
    const home = join(stack.dir, "worker")
    const bare = join(stack.dir, "bare")
    for (const dir of [home, bare]) {
      mkdirSync(dir)
      await runProgram(["chown", `${OWNER}:${OWNER}`, dir])
    }
    const lines: [measure: string, line: string][] = [
      ["git clone", `git clone -q --no-local ${stack.dir}/repository clone`],
      ["git status", "git -C clone status --porcelain"],
      ["git fsck", "git -C clone fsck --strict"],
      ["grep -r", "grep -rc zone clone/src > /dev/null"],
      ["cp -r project", `cp -r ${stack.dir}/project ${stack.dir}/packages .`],
      ["npm ci", "cd project && npm ci > /dev/null"],
      ["rm -rf", "rm -rf clone project packages"],
    ]
    const samples = new Map<string, { ours: number[]; base: number[] }>()
    for (let round = -1; round < ROUNDS; round++)
      for (const [side, cwd] of [
        ["ours", join(stack.ctx, below)],
        ["base", bare],
      ] as const)
        for (const [name, line] of lines) {
          const began = process.hrtime.bigint()
          const { code, stderr } = await work(line, cwd, home)
          if (code !== 0) throw new Error(`${name}: ${stderr}`)
          const ms = Number(process.hrtime.bigint() - began) / 1e6
          if (!samples.has(name)) samples.set(name, { ours: [], base: [] })
          if (round >= 0) samples.get(name)![side].push(ms)
        }
    const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!
    return lines.map(([name]) => {
      const { ours, base } = samples.get(name)!
      const [here, there] = [median(ours), median(base)]
      return { measure: name, unit: "ms", ours: here, base: there, ratio: Math.round((here / there) * 100) / 100 }
    })
  } finally {
    await stack.stop()
  }
}
