import { accessSync, constants, statSync } from "node:fs"
import { CtxError } from "../abi/error.js"
import type { SendRequest } from "../abi/frame.js"
import { STEPS_DEFAULT } from "../abi/limit.js"
import { durableSpacePath } from "../abi/path.js"
import { policyAllows } from "../policy/decision.js"
import { tighten } from "../policy/interpreter.js"
import { openHostSource, parseMount } from "../policy/mount.js"
import { checkPolicy, type Policy } from "../policy/policy.js"
import { closeSource, isDirectorySource } from "../policy/source.js"
import { type Agent, readAgent } from "../store/agent.js"
import { findModel, resolveModel } from "../store/catalogue.js"
import { ensureAgentHome } from "../store/home.js"
import { checkIdentity } from "../tool/identity.js"
import { planLayout } from "../tool/layout.js"
import { checkBwrap } from "../tool/probe.js"
import { checkCwd } from "./cwd.js"
import { explainDenial } from "./denial.js"
import { checkView, type Host } from "./host.js"
import { authoriseModel } from "./inference.js"
import { parseLimit, selectWindow, type Window } from "./window.js"

/** What a request will run with, when nothing refuses it. */
export interface Plan {
  agent: Agent
  cwd: string
  /** Host directory for /workspace, links resolved, when the request names one. */
  workspace?: string
  steps: number
  window: Window
}

/** Reads the controls of the served agent for one run. Errors: EINVAL, ENOENT naming the control; EPERM for another owner than at start. */
export function readServedAgent(host: Host): Agent {
  const agent = readAgent(host.source, host.name)
  if (agent.owner !== process.getuid?.()) {
    throw new CtxError("EPERM", `agent ${host.name} has another owner now; restart its runtime`)
  }
  return agent
}

/**
 * Checks everything that must hold before a run may begin, in the order of session-abi 6.3 step 4 but for the index.
 * Nothing is changed but that missing directories of the agent are made. Errors: EHOSTDOWN, ENOENT, ENOTDIR, EACCES, EINVAL.
 */
export async function planRun(host: Host, agent: Agent, request: SendRequest, cwd: string): Promise<Plan> {
  if (request.parent !== undefined) throw new CtxError("ENOSYS", "child agents are not served yet")
  parseMount(agent.mount, `agent/${agent.name}.d/mount`)
  checkIdentity(agent)
  await checkBwrap()
  await checkView(host)
  // What its owner removed is made anew: without it no run could ever begin again.
  ensureAgentHome(host.source.dataRoot, agent.owner, agent.name)
  const policy = agent.policy && checkPolicy(agent.policy).policy
  const workspace = request.workspace === undefined ? undefined : await checkWorkspace(host, request.workspace)
  const { viewDir, protectedDirs } = host
  const layout = await planLayout({ agent, viewDir, workspaceDir: workspace, protectedDirs })
  try {
    checkCwd(cwd, layout.tmp === undefined ? layout.binds : [...layout.binds, layout.tmp])
  } finally {
    layout.close()
  }
  const model = findModel(host.source, resolveModel(host.source, agent.owner, agent.model))
  const window = selectWindow(agent.window, model && parseLimit(model.controls.limit))
  await authoriseModel(host, agent, request.session, "")
  if (request.shared !== undefined) await checkSpace(host, agent, policy, request)
  const budget = Number(agent.env.get("CTX_AGENT_STEPS") ?? STEPS_DEFAULT)
  return { agent, cwd, workspace, steps: Math.min(budget, request.steps ?? budget), window }
}

/** The path of the requested workspace, links resolved: a launch follows none on it. */
async function checkWorkspace(host: Host, path: string): Promise<string> {
  const source = await openHostSource(path, host, { what: "workspace" })
  try {
    if (!isDirectorySource(source)) throw new CtxError("ENOTDIR", `workspace ${path} is not a directory`)
    accessSync(`/proc/self/fd/${source.fd}`, constants.R_OK | constants.W_OK | constants.X_OK)
    return source.path
  } catch (e) {
    if (e instanceof CtxError) throw e
    throw new CtxError("EACCES", `workspace ${path} cannot be read, written and searched by the owner`, { cause: e })
  } finally {
    closeSource(source)
  }
}

async function checkSpace(host: Host, agent: Agent, policy: Policy | undefined, request: SendRequest): Promise<void> {
  const space = request.shared!
  const path = durableSpacePath(space, host.source.dataRoot)
  if (!statSync(path, { throwIfNoEntry: false })?.isDirectory())
    throw new CtxError("ENOENT", `space ${space} does not exist`)
  const { subject, name, uid } = agent
  const asked = { subject, class: "shared" as const, object: space, permission: "write" }
  const decision = policyAllows(policy, subject, "shared", space, "write")
  const isAllowed = await tighten(decision, host.interpreter, {
    ...asked,
    agent: name,
    uid,
    session: request.session,
    run: "",
  })
  if (!isAllowed.allow) throw explainDenial(host, agent, `allow ${subject} shared:${space} write`, decision)
  try {
    accessSync(path, constants.R_OK | constants.W_OK | constants.X_OK)
  } catch (e) {
    throw new CtxError("EACCES", `space ${space} cannot be written by uid ${uid}`, { cause: e })
  }
}
