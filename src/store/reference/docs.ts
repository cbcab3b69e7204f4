import type { ReferenceItem } from "../release.js"
import type { Setting } from "../tree.js"
import * as man from "./man.js"
import { fixedDir, fixedFile } from "./skeleton.js"

const README = `# CortexFS

Under /ctx AI agents, models, tools, sessions and policies are files. What you see:

    status   state of this mount, key=value
    bin      helper programs; ctx is the command line
    model    models, one directory for each provider, and six aliases
    agent    agents: a program, a socket, a directory of controls each
    tool     tools: a program and a directory of controls each
    home     one private home for each Linux user, named by uid
    shared   spaces shared by users and agents; this text is in one of them

Ask an agent:

    ctx agent send coder "what is in README.md?"

Read what was said, with plain tools and no daemon:

    less /ctx/home/$(id -u)/agent/coder/session/default/messages.jsonl

Every path, format and command is described in man/.
`

const TEXTS: Record<string, string> = {
  "README.md": README,
  "man/ctx.agent.md": man.AGENT,
  "man/ctx.tool.md": man.TOOL,
  "man/ctx.model.md": man.MODEL,
  "man/ctx.coreutils.md": man.COREUTILS,
  "man/ctx.root-abi.md": man.ROOT_ABI,
  "man/ctx.session.md": man.SESSION,
  "man/ctx.provider.md": man.PROVIDER,
}

/** The space `cortexfs-docs` (root-abi.md 4.7). */
export function docItems(setting: Setting): ReferenceItem[] {
  const dir = "shared/cortexfs-docs"
  const files = Object.entries(TEXTS).map(
    ([name, text]): ReferenceItem => ({ path: `${dir}/${name}`, rule: "release", entry: fixedFile(setting, text) }),
  )
  return [{ path: `${dir}/man`, rule: "operator", entry: fixedDir(setting) }, ...files]
}
