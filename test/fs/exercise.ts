// needs: root fuse
// Long random runs on plain nodes, each checked against a model, with and without passthrough at the same time.
// CORTEXFS_EXERCISE_S=600 is the long run; CORTEXFS_SEED repeats one.
import { mkdirSync, readdirSync, readFileSync } from "node:fs"
import t from "tap"
import { cleanEnv, runProgram } from "../harness/program.js"
import { buildClient } from "./fixture/client.js"
import { makeFixture, OWNER } from "./fixture/stack.js"

const seconds = Number(process.env.CORTEXFS_EXERCISE_S ?? 20)
const seed = Number(process.env.CORTEXFS_SEED ?? Date.now() % 1_000_000_000)
t.setTimeout((seconds + 120) * 1000)
t.jobs = 2

const client = buildClient("exercise")

for (const isPassthrough of [true, false]) {
  const how = isPassthrough ? "with passthrough" : "without passthrough"
  t.test(`fuse.35 random data and eight processes in one tree agree with a model, ${how}`, async t => {
    const f = await makeFixture({
      timeoutMs: (seconds + 100) * 1000,
      ...(isPassthrough ? {} : { env: cleanEnv({ CORTEXFS_PASSTHROUGH: "0" }) }),
    })
    try {
      t.match(readFileSync(f.at("status"), "utf8"), `passthrough=${isPassthrough ? 1 : 0}\n`)
      const descriptors = () => readdirSync(`/proc/${f.host.child.pid}/fd`).length
      const before = descriptors()
      const rel = `home/${OWNER}/exercised`
      mkdirSync(f.at("shared/lab/data/tree"))
      const limits = { timeoutMs: (seconds + 90) * 1000 }
      const ended = await Promise.all([
        runProgram([client, "data", f.at(rel), f.behind(rel), String(seconds), String(seed)], limits),
        runProgram([client, "names", f.at("shared/lab/data/tree"), String(seconds), String(seed)], limits),
      ])
      t.same(
        ended.map(({ code, stderr }) => [code, stderr]),
        [
          [0, ""],
          [0, ""],
        ],
        `seed ${seed}`,
      )
      t.comment(ended.map(({ stdout }) => stdout.trim().replaceAll("\n", ", ")).join("; "))
      t.equal(ended[1].stdout.trim().split("\n").length, 8)
      // What is left of the names that were fought over; the own ones are all gone, here and behind.
      const left = (dir: string) => readdirSync(dir, { recursive: true }).sort()
      t.same(left(f.at("shared/lab/data/tree")), left(f.behind("shared/lab/data/tree")))
      t.notOk(left(f.behind("shared/lab/data/tree")).some(name => String(name).includes("w")))
      // Removed nodes are forgotten; descriptors of the directories and of the few files left may be kept.
      for (let waitedMs = 0; descriptors() > before + 30 && waitedMs < 5000; waitedMs += 50)
        await new Promise(resolve => setTimeout(resolve, 50))
      t.ok(descriptors() <= before + 30, `${before} descriptors before, ${descriptors()} after`)
    } finally {
      await f.stack.stop()
    }
  })
}
