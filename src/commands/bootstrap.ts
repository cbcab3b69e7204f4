import { string } from "@oclif/core/args"
import { boolean, string as stringFlag } from "@oclif/core/flags"
import { codeOf } from "../abi/error.js"
import { CtxCommand, failureContext } from "../client/command.js"
import { escapeText } from "../client/escape.js"
import { describeFailure, failureJson, formatFailure, usageError } from "../client/failure.js"
import { writeErr } from "../client/output.js"
import { applyBootstrap, checkBootstrap, findTreeVersion, formatPlan, planBootstrap } from "../store/bootstrap.js"
import type { Plan } from "../store/plan.js"
import { ensureDefaultStorage } from "../store/root.js"
import { readOwnerOption } from "../store/setting.js"

/** `ctx bootstrap`: makes, checks or previews a reference tree. Implements rolling-upgrades 11. */
export default class Bootstrap extends CtxCommand {
  static override summary = "Make a plain source directory a reference tree, or check one"
  static override description =
    "SOURCE is a directory; without it the generation that current leads to. A published generation is only checked or previewed; ctx storage update replaces it."
  static override examples = [
    "<%= config.bin %> bootstrap --check",
    "<%= config.bin %> bootstrap --dry-run /srv/tree",
    "<%= config.bin %> bootstrap --owner ann /srv/tree",
  ]
  static override args = { source: string({ description: "directory of the reference tree" }) }
  static override flags = {
    check: boolean({ description: "say in one line whether the tree is as in this release" }),
    "dry-run": boolean({ description: "print what would be made, change nothing" }),
    owner: stringFlag({ description: "uid or user name that new managed agents belong to", helpValue: "USER" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Bootstrap)
    if (flags.check && flags["dry-run"]) throw usageError("--check cannot be combined with --dry-run")
    readOwnerOption(flags.owner)
    const options = { owner: flags.owner }
    const source = args.source ?? `${ensureDefaultStorage()}/current`
    if (flags.check) return this.#check(source, options)
    if (flags["dry-run"]) return this.#preview(source, options)
    return this.#apply(source, options)
  }

  #apply(source: string, options: { owner?: string }): unknown {
    try {
      return planJson(applyBootstrap(source, options), "")
    } catch (error) {
      // The arguments were good: what is malformed is the tree, and that has one exit code in every mode.
      if (!["EINVAL", "EPROTO"].includes(codeOf(error) ?? "")) throw error
      const failure = { ...describeFailure(error, failureContext(this.ctor)), exit: 69 }
      writeErr(formatFailure(failure))
      process.exitCode = 69
      return failureJson(failure)
    }
  }

  async #check(source: string, options: { owner?: string }): Promise<unknown> {
    const { state, line } = checkBootstrap(source, options)
    await this.text(`${escapeText(line)}\n`)
    if (state !== "ok") process.exitCode = 69
    return { state, line }
  }

  async #preview(source: string, options: { owner?: string }): Promise<unknown> {
    try {
      const plan = planBootstrap(source, options)
      await this.text(formatPlan(plan))
      return planJson(plan)
    } catch (error) {
      if (!["EINVAL", "EPROTO"].includes(codeOf(error) ?? "")) throw error
      return this.#reject(source, error)
    }
  }

  async #reject(source: string, error: unknown): Promise<unknown> {
    const version = findTreeVersion(source)
    await this.text(`reject tree_version=${version ?? "-"}\n`)
    const failure = { ...describeFailure(error, failureContext(this.ctor)), exit: 69 }
    writeErr(formatFailure(failure))
    process.exitCode = 69
    return { from: version ?? null, to: null, migrations: [], changes: [], rejected: true, ...failureJson(failure) }
  }
}

function planJson(plan: Plan, prefix = "would_"): object {
  const changes = plan.changes.map(({ action, path }) => ({ action: `${prefix}${action}`, path }))
  return { from: plan.from, to: plan.to, migrations: plan.migrations, changes, rejected: false }
}
