const $ = id => document.getElementById(id);

/** An element. Text only ever becomes a text node: nothing here parses markup. */
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
