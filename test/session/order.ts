// needs: root strace
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t, { type Test } from "tap"
import type { Place } from "../../src/session/place.js"
import { makePlace, recordRun, runChild, runId, Sessions, startOf, takePicture } from "../fixture/session/place.js"
import { findSyncs, readTrace, type TraceEvent } from "../fixture/session/trace.js"

const CALLS = "openat,openat2,close,fsync,fdatasync,renameat2,rename,renameat,write,writev,pwrite64,ftruncate"

async function traceSend(t: Test, place: Place, request: { deltas?: number; tool?: boolean }): Promise<TraceEvent[]> {
  const dir = mkdtempSync(join(tmpdir(), "cortexfs-trace-"))
  t.teardown(() => rmSync(dir, { recursive: true, force: true }))
  const file = join(dir, "trace")
  const before = ["strace", "-f", "-y", "-s", "200", "-o", file, "-e", `trace=${CALLS}`]
  const ended = await runChild(
    place,
    { session: "s", id: "m-2", run: runId(2), content: "input 2", ...request },
    { before, uid: 0 },
  )
  t.equal(ended.code, 0, ended.stdout)
  return readTrace(readFileSync(file, "utf8"))
}

t.test(
  "session.5 (recorder level) user row, start and state are durable in this order before the start frame; tool_call before the spawn; done before it is sent",
  async t => {
    const place = makePlace()
    await recordRun(new Sessions(place), "s", startOf(1))
    const trace = await traceSend(t, place, { tool: true })
    const at = (what: string, test: (e: TraceEvent) => boolean, from = 0): number => {
      const i = trace.findIndex((e, n) => n >= from && test(e))
      t.ok(i >= 0, `${what} is in the trace`)
      return i
    }
    const synced = (name: string) => (e: TraceEvent) => e.call === "fdatasync" && e.path.endsWith(`/s/${name}`)
    const sent = (type: string) => (e: TraceEvent) =>
      e.call === "write" && e.fd === 1 && e.text.includes(`\\"type\\":\\"${type}\\"`)
    const user = at("sync of the user row", synced("messages.jsonl"))
    const start = at("sync of start", synced("events.jsonl"))
    const state = at(
      "rename of state",
      e => e.call.startsWith("rename") && e.text.includes('".state.new"') && e.text.includes('"state"'),
    )
    const stateSync = at(
      "sync of the session directory",
      e => e.call === "fsync" && e.path.endsWith("/session/s"),
      state,
    )
    const startSent = at("start frame", sent("start"))
    t.ok(user < start && start < state && state < stateSync && stateSync < startSent, "user row, start, state, frame")
    const call = at("sync of tool_call", synced("events.jsonl"), startSent)
    const spawn = at("spawn", sent("spawned"))
    t.ok(call < spawn, "tool_call, spawn")
    const row = at("sync of the tool row", synced("messages.jsonl"), spawn)
    const message = at("sync of the tool message", synced("events.jsonl"), row)
    const messageSent = trace.findIndex((e, i) => i > spawn && sent("message")(e))
    t.ok(row < message && message < messageSent, "tool row, message, frame")
    const answer = at("sync of the assistant row", synced("messages.jsonl"), messageSent)
    const done = at("sync of message and done", synced("events.jsonl"), answer)
    t.ok(answer < done && done < at("done frame", sent("done")), "assistant row, done, frame")
  },
)

t.test(
  "session.24 (recorder level) a send in an indexed session makes at most 8 syncs and writes nothing below index/; 10,000 deltas add none",
  async t => {
    const counts: number[] = []
    for (const deltas of [0, 10_000]) {
      const place = makePlace()
      await recordRun(new Sessions(place), "s", startOf(1))
      const before = takePicture(join(place.dir, "index"))
      const trace = await traceSend(t, place, { deltas })
      const syncs = findSyncs(trace)
      t.ok(syncs.length > 0 && syncs.length <= 8, `${syncs.length} syncs`)
      counts.push(syncs.length)
      t.strictSame(takePicture(join(place.dir, "index")), before)
      t.notOk(
        trace.some(e => e.call.startsWith("rename") && e.text.includes("/index")),
        "no rename below index/",
      )
    }
    t.equal(counts[0], counts[1])
  },
)
