// What `--help` shows: 80 columns, summary, USAGE, ARGUMENTS, FLAGS, EXAMPLES, colour only in headings on a terminal.

import { stripVTControlCharacters } from "node:util"
import type { Interfaces } from "@oclif/core"
import type { Command } from "@oclif/core/command"
import type { Config } from "@oclif/core/config"
import { CommandHelp, Help } from "@oclif/core/help"

const WIDTH = 80
const SECTIONS = ["USAGE", "ARGUMENTS", "FLAGS", "EXAMPLES", "DESCRIPTION", "ALIASES"]
const HEADING = /^[A-Z]+$/gm

/** The sections of one command in the order of DESIGN.md (Help). */
class SectionHelp extends CommandHelp {
  protected override sections() {
    return super
      .sections()
      .filter(section => SECTIONS.includes(section.header))
      .sort((a, b) => SECTIONS.indexOf(a.header) - SECTIONS.indexOf(b.header))
  }

  // The parser's own --json flag comes first and in a group of its own; here it is the last of one list.
  protected override groupFlags(flags: Command.Flag.Any[]) {
    const json = flags.filter(flag => flag.name === "json")
    const mainFlags = [...flags.filter(flag => flag.name !== "json"), ...json.map(describeJson)]
    return { flagGroups: {}, mainFlags }
  }

  protected override description(): string | undefined {
    return this.command.description === undefined ? undefined : this.wrap(this.command.description)
  }
}

/** The help of `ctx`. Implements DESIGN.md (Terminal, Help) and ctx-coreutils 2.1. */
export class CtxHelp extends Help {
  protected override CommandHelpClass = SectionHelp

  constructor(config: Interfaces.Config, opts: Partial<Interfaces.HelpOptions> = {}) {
    super(config, {
      ...opts,
      maxWidth: WIDTH,
      stripAnsi: true,
      flagSortOrder: "none",
      hideAliasesFromRoot: true,
    } as Partial<Interfaces.HelpOptions>)
  }

  protected override log(...texts: string[]): void {
    const text = stripVTControlCharacters(texts.join(" "))
    const style = headingStyle(process.env, process.stdout.isTTY === true)
    process.stdout.write(`${style === "" ? text : text.replace(HEADING, `${style}$&\u001b[0m`)}\n`)
  }
}

/**
 * The escape sequence before a heading, or "" where there is no colour: not a terminal, TERM=dumb, NO_COLOR set, also
 * to nothing. Implements the table of DESIGN.md (Where colour appears).
 */
export function headingStyle(env: NodeJS.ProcessEnv, isTerminal: boolean): string {
  if (!isTerminal || env.TERM === "dumb" || env.NO_COLOR !== undefined) return ""
  const has256 = /256/.test(env.TERM ?? "") || /256|truecolor|24bit/.test(env.COLORTERM ?? "")
  if (!has256) return "\u001b[1;32m"
  const ground = (env.COLORFGBG ?? "").split(";").pop()
  return `\u001b[1;38;5;${ground === "7" || ground === "15" ? 29 : 121}m`
}

function describeJson(flag: Command.Flag.Any): Command.Flag.Any {
  return { ...flag, description: "print one JSON value instead of text" }
}

/** Prints the help of a command or topic id (`agent:send`), or of the program for "". */
export async function printHelp(config: Config, id: string): Promise<void> {
  await new CtxHelp(config).showHelp(id === "" ? [] : id.split(":"))
}
