// The one base class of every ctx command.

import { Command } from "@oclif/core/command"
import { escapeText } from "./escape.js"
import { describeFailure, formatFailure } from "./failure.js"
import { writeErr, writeJson, writeOut } from "./output.js"
import { checkMounted, type Places, resolvePlaces } from "./place.js"

/** A table cell or value: text and numbers as they are, a boolean as `1` or `0`, null and undefined absent. */
export type Cell = string | number | bigint | boolean | null | undefined

/**
 * Base of every command. A command declares summary, description, examples, args, flags, parses with `this.parse`,
 * throws CtxError for any failure (`usageError` for a bad command line) and prints with the methods here. With `--json`
 * (every command, unless it sets `enableJsonFlag = false`) nothing but the value that `run` returns is printed, so the
 * printing methods return that value: `return this.table(…)`. Errors, exit codes and help are the runner's
 * (`client/main.ts`). Implements ctx-coreutils 2.
 */
export abstract class CtxCommand extends Command {
  static override enableJsonFlag = true

  #places: Places | undefined

  /** CTX_ROOT, CTX_HOME, CTX_PATH resolved once. Errors: EINVAL. ctx-coreutils 2.2. */
  get places(): Places {
    this.#places ??= resolvePlaces()
    return this.#places
  }

  /** The places, after making sure that the tree is mounted. Errors: EHOSTDOWN, EINVAL. */
  mountedPlaces(): Places {
    checkMounted(this.places)
    return this.places
  }

  /** Prints rows as TAB-separated lines; `columns` are the JSON keys (lower case). Returns the JSON value. 2.4. */
  async table(columns: readonly string[], rows: readonly (readonly Cell[])[]): Promise<Record<string, unknown>[]> {
    await this.text(rows.map(row => `${row.map(formatCell).join("\t")}\n`).join(""))
    return rows.map(row => Object.fromEntries(columns.map((column, i) => [column, jsonCell(row[i])])))
  }

  /** Prints `key=value` lines. Returns one object with the same key order. 2.4. */
  async pairs(entries: readonly (readonly [string, Cell])[]): Promise<Record<string, unknown>> {
    await this.text(entries.map(([key, value]) => `${key}=${formatCell(value)}\n`).join(""))
    return Object.fromEntries(entries.map(([key, value]) => [key, jsonCell(value)]))
  }

  /** Prints one action line; returns `{action, ...fields}`. Collect them and return the array from `run`. 2.4. */
  async action(line: string, action: string, fields: Record<string, unknown> = {}): Promise<Record<string, unknown>> {
    await this.text(`${line}\n`)
    return { action, ...fields }
  }

  /** Prints ready text, already escaped, unless `--json` is on. */
  async text(text: string): Promise<void> {
    if (!this.jsonEnabled()) await writeOut(text)
  }

  /** One of several failures: prints its line now; the first decides the exit code, the command goes on. 2.6. */
  report(error: unknown): void {
    const failure = describeFailure(error, failureContext(this.ctor))
    writeErr(formatFailure(failure))
    process.exitCode ??= failure.exit
  }

  /** Runs a transaction to its end although SIGINT, SIGTERM or SIGHUP arrives; the signal takes effect after. 2.7. */
  async holdSignals<T>(transaction: () => T | Promise<T>): Promise<T> {
    let held: number | undefined
    const hold = (_: NodeJS.Signals, number: number): void => {
      held ??= number
    }
    const names = ["SIGINT", "SIGTERM", "SIGHUP"] as const
    const others = names.map(name => process.listeners(name))
    for (const name of names) process.removeAllListeners(name).on(name, hold)
    try {
      return await transaction()
    } finally {
      names.forEach((name, i) => {
        process.removeListener(name, hold)
        for (const listener of others[i] ?? []) process.on(name, listener)
      })
      if (held !== undefined) process.exit(128 + held)
    }
  }

  /** True when `--json` stands before `--`; no environment variable turns it on. */
  override jsonEnabled(): boolean {
    return this.ctor.enableJsonFlag && hasFlag(this.argv, "--json")
  }

  protected override async init(): Promise<void> {
    // The parser reads stdin for a missing argument unless told otherwise; only named commands may (2.7).
    for (const arg of Object.values(this.ctor.args)) arg.ignoreStdin = true
  }

  /** Runs the command; the runner's way in, and nobody else's. */
  override async _run<T>(): Promise<T> {
    await this.init()
    const result = await this.run()
    if (this.jsonEnabled() && result !== undefined) await writeJson(result)
    return result as T
  }
}

/** True when the flag stands in the words before `--`. */
export function hasFlag(argv: readonly string[], flag: string): boolean {
  const end = argv.indexOf("--")
  return (end === -1 ? argv : argv.slice(0, end)).includes(flag)
}

/** Words and known flags of a command class, for the hints of its errors. */
export function failureContext(command: {
  id?: string
  flags?: object
  baseFlags?: object
  enableJsonFlag?: boolean
}): {
  words: string
  flags: string[]
} {
  const flags = Object.keys({ ...command.baseFlags, ...command.flags })
  if (command.enableJsonFlag) flags.push("json")
  return { words: (command.id ?? "").replaceAll(":", " "), flags: [...flags, "help"] }
}

function formatCell(cell: Cell): string {
  if (cell === null || cell === undefined) return "-"
  if (typeof cell === "boolean") return cell ? "1" : "0"
  return typeof cell === "string" ? escapeText(cell) : cell.toString()
}

function jsonCell(cell: Cell): unknown {
  if (cell === undefined || cell === null) return null
  return typeof cell === "bigint" ? Number(cell) : cell
}
