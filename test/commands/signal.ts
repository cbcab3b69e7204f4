// needs: root fuse
import t from "tap"
import { startCtx } from "../fixture/commands/stack.js"
import { makeStack } from "../harness/product.js"

t.test("a reading command that waits for a mount that does not answer ends by a signal within a second", async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  const mount = await stack.startHost()
  t.teardown(() => mount.child.kill("SIGCONT"))
  const commands = [["status"], ["ls", "agent"], ["cat", "agent/coder.d/policy"], ["agent", "status", "coder"]]
  for (const words of [...commands, ["agent", "send", "coder", "x"], ["agent", "history", "coder"]]) {
    for (const [signal, code] of [
      ["SIGTERM", 143],
      ["SIGINT", 130],
      ["SIGHUP", 129],
    ] as const) {
      mount.child.kill("SIGSTOP")
      const running = startCtx(stack, words)
      await new Promise(resolve => setTimeout(resolve, 600))
      t.equal(running.child.exitCode, null, `${words.join(" ")} waits`)
      const sentAtMs = performance.now()
      running.child.kill(signal)
      const isLate = new Promise(resolve => setTimeout(() => resolve("late"), 1000))
      t.not(await Promise.race([running.ended, isLate]), "late", `${words.join(" ")} ends by ${signal}`)
      mount.child.kill("SIGCONT")
      const ended = await running.ended
      t.equal(ended.code, code, signal)
      t.ok(ended.endedAtMs - sentAtMs < 1000, `${ended.endedAtMs - sentAtMs} ms`)
    }
  }
})
