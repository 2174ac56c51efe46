// Asks the server for JSON; a body makes it a POST. An error says in words what went wrong, with the answer as `found`.

export async function ask(path, body) {
  let response;
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  const found = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(found.detail ?? `The server answers ${response.status}.`), { found });
  return found;
}
