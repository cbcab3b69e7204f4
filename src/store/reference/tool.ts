import { formatList } from "../../abi/control.js"
import type { ReferenceItem } from "../release.js"
import type { Setting } from "../tree.js"
import { executable } from "./executable.js"
import { toolPolicy } from "./profile.js"
import { fixedDir, fixedFile } from "./skeleton.js"

interface ReferenceTool {
  name: string
  description: string
  /** the exact content of `schema` (tool-policy-abi.md 5.1) */
  schema: object
  cap: string[]
}

const PATH = { type: "string", minLength: 1, maxLength: 4096 }

const TOOLS: ReferenceTool[] = [
  {
    name: "fs.read",
    description: "Read a text file",
    schema: {
      type: "object",
      additionalProperties: false,
      required: ["path"],
      properties: {
        path: PATH,
        line: { type: "integer", minimum: 1, default: 1 },
        lines: { type: "integer", minimum: 1, maximum: 5000, default: 2000 },
      },
    },
    cap: ["text", "read"],
  },
  {
    name: "fs.list",
    description: "List a directory",
    schema: {
      type: "object",
      additionalProperties: false,
      properties: {
        path: { ...PATH, default: "." },
        depth: { type: "integer", minimum: 1, maximum: 8, default: 1 },
        hidden: { type: "boolean", default: false },
        limit: { type: "integer", minimum: 1, maximum: 5000, default: 500 },
      },
    },
    cap: ["text", "read"],
  },
]

function itemsOf(tool: ReferenceTool, setting: Setting): ReferenceItem[] {
  const controlDir = `tool/${tool.name}.d`
  const dirs = ["", "/hooks", "/hooks/pre.d", "/hooks/post.d"].map(
    (path): ReferenceItem => ({ path: `${controlDir}${path}`, rule: "operator", entry: fixedDir(setting) }),
  )
  const release = (name: string, text: string): ReferenceItem => ({
    path: `${controlDir}/${name}`,
    rule: "release",
    entry: fixedFile(setting, text),
  })
  const operator = (name: string, text: string, mode: number): ReferenceItem => ({
    path: `${controlDir}/${name}`,
    rule: "operator",
    entry: fixedFile(setting, text, mode),
  })
  return [
    ...dirs,
    release("name", `${tool.name}\n`),
    release("description", `${tool.description}\n`),
    release("schema", `${JSON.stringify(tool.schema)}\n`),
    release("cap", formatList(tool.cap).toString()),
    operator("policy", formatList(toolPolicy(tool.name)).toString(), 0o644),
    operator("log", "", 0o444),
    {
      path: `tool/${tool.name}`,
      rule: "release",
      entry: executable(setting, "cortexfs-tool", tool.name, 0o555),
    },
  ]
}

/** The reference tools (tool-policy-abi.md 5) that this release has. */
export function toolItems(setting: Setting): ReferenceItem[] {
  return TOOLS.flatMap(tool => itemsOf(tool, setting))
}
