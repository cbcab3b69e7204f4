import { closeSync, constants, fstatSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { STEP_ARGUMENT } from "../abi/product.js"
import { O_PATH, openat2 } from "../native/sys.js"
import { RESOLVE_STRICT } from "../store/file.js"
import { payloadEnv } from "../tool/env.js"
import { launch, type Sandboxed } from "../tool/sandbox.js"
import type { Control } from "./control.js"
import { checkView } from "./host.js"
import type { RunFacts } from "./run.js"

/** Opens the agent's program without following a link. Errors: ENOENT, EACCES. */
function openProgram(facts: RunFacts): number {
  const { host, agent } = facts
  let fd: number
  try {
    fd = openat2(host.source.dirFd, `agent/${agent.name}`, O_PATH | constants.O_NOFOLLOW, 0, RESOLVE_STRICT)
  } catch (e) {
    if (codeOf(e) === "ENOENT") throw new CtxError("ENOENT", `program of agent ${agent.name} does not exist`)
    throw e
  }
  const { mode } = fstatSync(fd)
  if ((mode & constants.S_IFMT) === constants.S_IFREG && (mode & 0o111) !== 0) return fd
  closeSync(fd)
  throw new CtxError("EACCES", `program of agent ${agent.name} is not an executable file`)
}

/**
 * Starts the agent's program for one step in a sandbox of its own; its processes may use the run's control socket from
 * their first instruction on. Errors: those of the sandbox (EHOSTDOWN, ENOENT, EACCES, EPERM).
 * agent-runtime 4, agent-tool-security 7
 */
export async function startStep(
  facts: RunFacts,
  run: string,
  step: number,
  control: Control,
  signal: AbortSignal,
): Promise<Sandboxed> {
  const { host, agent, session, steps, window, cwd, workspace } = facts
  await checkView(host)
  const payloadFd = openProgram(facts)
  let held = 0
  try {
    const started = await launch({
      agent,
      viewDir: host.viewDir,
      workspaceDir: workspace,
      protectedDirs: host.protectedDirs,
      payloadFd,
      args: [STEP_ARGUMENT],
      env: payloadEnv(agent, session, run, { kind: "step", step, steps, window: window.tokens }),
      cwd,
      controlSocket: control.path,
      onHeld: (pid, startTime) => {
        held = pid
        control.register("step", pid, startTime)
      },
      signal,
    })
    void started.exited.then(() => control.unregister(started.pid))
    return started
  } catch (e) {
    control.unregister(held)
    throw e
  } finally {
    closeSync(payloadFd)
  }
}
