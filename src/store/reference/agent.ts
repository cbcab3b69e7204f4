import { formatList, parseValue } from "../../abi/control.js"
import { refuse } from "../../abi/issue.js"
import { isUid } from "../../abi/name.js"
import { agentHomePath, CTX_ROOT, homePath, rootEntryPath } from "../../abi/path.js"
import { AGENT_ABI } from "../../abi/product.js"
import { type Identity, readIdentity } from "../account.js"
import type { ReferenceItem } from "../release.js"
import type { Entry, Setting, Tree } from "../tree.js"
import { executable } from "./executable.js"
import { AGENT_NAMES, PROFILES, type Profile } from "./profile.js"

/** `owner` of an agent that is there already, else whose a new one is. */
function ownerOf(tree: Tree, name: string): Identity {
  const path = `agent/${name}.d/owner`
  if (!tree.find(path)) return tree.setting.newOwner()
  const owner = parseValue(tree.read(path), path)
  if (!isUid(owner)) refuse(path, "is not a decimal uid", 1)
  // Who owns the controls by hand stays who he is; only what is missing is made for him.
  return owner === "0" ? { uid: 0, gid: 0, groups: [] } : readIdentity(owner, path)
}

function policyOf(profile: Profile): string[] {
  const subject = `${profile.name}_t`
  return [
    ...profile.tools.map(tool => `allow ${subject} tool:${tool} execute`),
    `allow ${subject} model:main use`,
    `allow ${subject} model:helper use`,
  ]
}

/** The controls of a new managed agent in the order of root-abi.md 4.4, each as its text (rolling-upgrades.md 6.1). */
function controlsOf(profile: Profile, owner: Identity): [string, string][] {
  const lines = (items: string[]) => formatList(items).toString()
  return [
    ["owner", `${owner.uid}\n`],
    ["uid", `${owner.uid}\n`],
    ["gid", `${owner.gid}\n`],
    ["groups", lines(owner.groups.map(String))],
    ["label", `user_u:agent_r:${profile.name}_t:s0\n`],
    ["iso", "shared\n"],
    ["parent", "\n"],
    ["life", "owned\n"],
    ["root", `${agentHomePath(owner.uid, profile.name)}/root\n`],
    ["cwd", "/workspace\n"],
    ["env", "CTX_AGENT_STEPS=64\n"],
    ["path", lines([rootEntryPath("tool"), `${homePath(owner.uid)}/tool`])],
    ["mount", `${CTX_ROOT}\t${CTX_ROOT}\tro\trbind,nosuid,nodev\n`],
    ["model", `${profile.model}\n`],
    ["abi", `${AGENT_ABI}\n`],
    ["policy", lines(policyOf(profile))],
    ["status", "dead\n"],
    ["pid", "\n"],
    ["log", ""],
    ["meta.json", "{}\n"],
    ["tools", lines([...profile.tools])],
    ["approval", "auto\n"],
    ["window", "auto\n"],
    ["system.md", profile.system],
  ]
}

function itemsOf(profile: Profile, owner: Identity, setting: Setting): ReferenceItem[] {
  const { uid, gid } = owner
  const controlDir = `agent/${profile.name}.d`
  const dir: Entry = { kind: "dir", mode: setting.dirMode, uid, gid }
  const dirs = ["", "/hooks", "/hooks/pre.d", "/hooks/post.d"].map(
    (path): ReferenceItem => ({ path: `${controlDir}${path}`, rule: "operator", entry: dir }),
  )
  const controls = controlsOf(profile, owner).map(
    ([name, text]): ReferenceItem => ({
      path: `${controlDir}/${name}`,
      rule: name === "abi" ? "release" : "operator",
      entry: { kind: "file", data: Buffer.from(text), mode: 0o644, uid, gid },
    }),
  )
  const program = executable(setting, "cortexfs-step", profile.name, 0o755, owner)
  // The executable comes last: its name is the commit point of an agent (fuse.md 6.1).
  return [...dirs, ...controls, { path: `agent/${profile.name}`, rule: "release", entry: program }]
}

/** The managed agents named `names`. Errors: `EINVAL` when no owner can be told, or an existing one is malformed. */
export function agentItems(tree: Tree, names: readonly string[] = AGENT_NAMES): ReferenceItem[] {
  return PROFILES.filter(profile => names.includes(profile.name)).flatMap(profile =>
    itemsOf(profile, ownerOf(tree, profile.name), tree.setting),
  )
}
