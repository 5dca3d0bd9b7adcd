// What both generations of the TypeScript SDK's client do alike: the steps of ../real_clients.py, printed as one line of JSON.

import { readFileSync } from 'node:fs';

/** Version of an installed package. */
export function version(name) {
    return JSON.parse(readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url))).version;
}

/** The answer to a question: yes, or Ada. */
export function answer(questions, params) {
    questions.push(params.message);
    return { action: 'accept', content: 'confirm' in params.requestedSchema.properties ? { confirm: true } : { recipient: 'Ada' } };
}

/** Text of a tool's result; `{ error: text }` when the tool has failed. */
export function text(result) {
    return result.isError ? { error: result.content[0].text } : result.content[0].text;
}

/**
 * Walk through all steps.
 *
 * @param client a client that is connected
 * @param call calls a tool: name, arguments, and a function that gets each progress
 * @param listen asks to be told about changes; resolves to what came of it, if that is more than a yes
 * @param questions the questions that `answer` has answered
 */
export async function walk(client, call, listen, questions) {
    const steps = {};
    const names = (list, key) => list.map(item => item[key]).sort();
    steps.list = {
        tools: names((await client.listTools()).tools, 'name'),
        resources: names((await client.listResources()).resources, 'uri'),
        templates: names((await client.listResourceTemplates()).resourceTemplates, 'uriTemplate'),
        prompts: names((await client.listPrompts()).prompts, 'name')
    };

    const hello = text(await call('hello', { name: 'Ada' }));
    let { notebook } = (await call('create_notebook', { title: 'Groceries' })).structuredContent;
    for (const note of ['Milk', 'Bread']) await call('add_note', { notebook, text: note });
    steps.call = [hello, (await call('list_notes', { notebook })).structuredContent];

    const progress = [];
    const counted = text(await call('count', { to: 3, delay_ms: 10 }, update => progress.push(update.progress)));
    steps.progress = [progress, counted];

    const transferred = text(await call('transfer_notebook', { notebook }));
    if (!transferred.error) notebook = transferred.split(' ').at(-1);
    const notes = (await call('list_notes', { notebook })).structuredContent;
    steps.ask = { transferred, notes, deleted: text(await call('delete_notebook', { notebook })), questions };

    const read = async uri => (await client.readResource({ uri })).contents[0].text;
    steps.read = [await read('info://server'), await read('greeting://fr')];

    const prompt = await client.getPrompt({ name: 'introduce', arguments: { name: 'Ada', language: 'fr' } });
    steps.prompt = prompt.messages[0].content.text;

    steps.listen = await listen().then(told => (typeof told === 'string' ? told : 'served'), error => ({ error: error.message }));
    return steps;
}
