// Saves a memory, finds it, and builds a prompt: npm install, npm run check, then run it with a server and a key.
import createClient from "openapi-fetch";
import type { components, paths } from "./inference-core.js";

type Memory = components["schemas"]["Memory"];

export async function remember(baseUrl: string, key: string): Promise<Memory[]> {
  const api = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

  const saved = await api.POST("/v1/memories", {
    body: { content: "Lives in Lisbon", memory_type: "facts", tags: ["home"] },
    params: { header: { "idempotency-key": crypto.randomUUID() } },
  });
  if (saved.error) throw new Error(`${saved.error.title}: ${saved.error.detail ?? ""}`);

  const changed = await api.PATCH("/v1/memories/{memory_id}", {
    params: { path: { memory_id: saved.data.id }, header: { "if-match": `"${saved.data.version}"` } },
    body: { pinned: true },
  });
  if (changed.response.status === 412) throw new Error("Somebody else changed it meanwhile");

  const found = await api.POST("/v1/memories/search", { body: { query: "Where does she live?", k: 3 } });
  const prompt = await api.POST("/v1/context", { body: { query: "Where does she live?" } });
  console.log(prompt.data?.context);
  return found.data?.memories ?? [];
}
