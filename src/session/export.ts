// One printed ATIF document: first checked whole, then printed, each in a pass of its own (session-abi 14).
import { ATIF_LINE_MAX, ATIF_LINES_MAX, checkTrajectory, type TrajectoryIssues } from "../abi/atif.js"
import type { JsonObject } from "../abi/json.js"
import { TRAJECTORY_VERSION, VERSION } from "../abi/product.js"
import { readMeta } from "./meta.js"
import { HistoryReader } from "./reader.js"
import { emptyTrajectory, finalMetrics, readSteps, type Step, startTotals, type Totals } from "./trajectory.js"

/** A trajectory that has been read once and found valid or not. */
export class Trajectory {
  /** What is wrong with it; it must not be printed unless `count` is 0. */
  readonly issues: TrajectoryIssues
  /** Tool results that were dropped because no call of their run has their id. */
  readonly dropped: number
  readonly #reader: HistoryReader
  readonly #head: JsonObject
  readonly #totals: Totals

  private constructor(reader: HistoryReader, head: JsonObject, totals: Totals, issues: TrajectoryIssues) {
    this.#reader = reader
    this.#head = head
    this.#totals = totals
    this.issues = issues
    this.dropped = totals.dropped
  }

  /**
   * Reads and checks the trajectory of a session below a `session` directory. Close it. Errors: `ENODATA` no rows;
   * `ENOENT` no such session; `EIO` damaged history, naming file and line.
   */
  static async open(sessionsDir: string, agent: string, session: string): Promise<Trajectory> {
    const reader = await HistoryReader.open(sessionsDir, session)
    try {
      const head = headOf(agent, session, readMeta(reader.dirFd))
      const totals = startTotals()
      const issues = await checkSteps(head, readSteps(reader, totals), totals)
      if (totals.steps === 0) throw emptyTrajectory(session)
      return new Trajectory(reader, head, totals, issues)
    } catch (e) {
      reader.close()
      throw e
    }
  }

  /** The document as text in pieces, pretty-printed with two spaces, LF at the end. */
  async *format(): AsyncGenerator<string> {
    const head = JSON.stringify(this.#head, null, 2)
    yield `${head.slice(0, -2)},\n  "steps": [\n`
    let isFirst = true
    for await (const step of readSteps(this.#reader, startTotals())) {
      yield `${isFirst ? "" : ",\n"}${indent(JSON.stringify(step, null, 2), "    ")}`
      isFirst = false
    }
    const final = indent(JSON.stringify(finalMetrics(this.#totals), null, 2), "  ").trimStart()
    yield `\n  ],\n  "final_metrics": ${final}\n}\n`
  }

  /** Closes the files. */
  close(): void {
    this.#reader.close()
  }
}

function headOf(agent: string, session: string, meta: JsonObject): JsonObject {
  const name = typeof meta.client === "string" ? meta.client : "cortexfs"
  const about: JsonObject = { name, version: VERSION }
  if (typeof meta.model === "string") about.model_name = meta.model
  if (typeof meta.scope === "string") about.extra = { scope: meta.scope }
  return { schema_version: TRAJECTORY_VERSION, session_id: session, trajectory_id: `${agent}/${session}`, agent: about }
}

/**
 * Checks a stream of steps as one document, a step at a time, so that no more than one is in memory. `totals` is what the
 * stream fills.
 */
export async function checkSteps(
  head: JsonObject,
  steps: AsyncIterable<Step>,
  totals: Totals,
): Promise<TrajectoryIssues> {
  const issues: TrajectoryIssues = { lines: [], count: 0 }
  const add = (found: TrajectoryIssues, i: number): void => {
    for (const line of found.lines) {
      const text = line.replace(/^steps\[0\]/, `steps[${i}]`).slice(0, ATIF_LINE_MAX)
      if (issues.lines.length < ATIF_LINES_MAX) issues.lines.push(text)
    }
    issues.count += found.count
  }
  let i = 0
  for await (const step of steps) {
    if (step.step_id !== i + 1) add({ lines: [`steps[0].step_id: must be ${i + 1}`], count: 1 }, i)
    add(checkTrajectory({ ...head, steps: [{ ...step, step_id: 1 }] }), i)
    i++
  }
  if (i > 0) {
    const last = { step_id: 1, source: "system", message: "" }
    add(checkTrajectory({ ...head, steps: [last], final_metrics: finalMetrics(totals) }), i)
  }
  return issues
}

function indent(text: string, by: string): string {
  return by + text.replaceAll("\n", `\n${by}`)
}
