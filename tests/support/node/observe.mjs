// What every TypeScript client is asked to do; the Python side judges the outcome.
// `call(name, arguments, onprogress)` calls a tool in the way of the client's version.

async function attempt(action) {
  try {
    return { result: await action() };
  } catch (error) {
    return { error: { code: error.code ?? null, message: error.message } };
  }
}

export async function observe(client, revision, call) {
  const seen = { revision, server: client.getServerVersion() ?? null, progress: [] };
  seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
  seen.call = await attempt(() => call('add', { a: 2, b: 3 }));
  seen.withProgress = await attempt(() => call('test_tool_with_progress', {}, (update) => seen.progress.push(update)));
  seen.failing = await attempt(() => call('test_error_handling', {}));
  seen.badArguments = await attempt(() => call('add', { a: 'two' }));
  seen.unknown = await attempt(() => call('no_such_tool', {}));
  return seen;
}
