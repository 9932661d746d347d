// Drives the official TypeScript client, v2: node ts_v2.mjs URL AUTHORIZATION legacy|auto|<revision>. Prints what it saw
// as one JSON object.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { observe } from './observe.mjs';

const [url, authorization, mode] = process.argv.slice(2);
const negotiation = mode === 'legacy' || mode === 'auto' ? mode : { pin: mode };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: authorization } } });
const client = new Client({ name: 'naru-tests', version: '0' }, { versionNegotiation: { mode: negotiation } });
client.onerror = (error) => console.error(`onerror: ${error.message}`);
await client.connect(transport);
const call = (name, args, onprogress) => client.callTool({ name, arguments: args }, { onprogress });
console.log(JSON.stringify(await observe(client, client.getNegotiatedProtocolVersion(), call)));
await client.close();
