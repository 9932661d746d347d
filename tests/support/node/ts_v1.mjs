// Drives the official TypeScript client, v1: node ts_v1.mjs URL AUTHORIZATION. Prints what it saw as one JSON object.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { observe } from './observe.mjs';

const [url, authorization] = process.argv.slice(2);
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: authorization } } });
const client = new Client({ name: 'naru-tests', version: '0' });
client.onerror = (error) => console.error(`onerror: ${error.message}`);
await client.connect(transport);
const call = (name, args, onprogress) => client.callTool({ name, arguments: args }, undefined, { onprogress });
console.log(JSON.stringify(await observe(client, transport.protocolVersion, call)));
await client.close();
