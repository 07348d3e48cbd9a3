// Save drawings as one SVG file that needs no style sheet.

import { SVG, shape } from "./plots.mjs";

/** One standalone SVG file of several drawings side by side, with computed styles. */
export function composeFigure(drawings, title, caption, background, ink) {
  const gap = 16;
  const width = drawings.reduce((sum, svg) => sum + Number(svg.getAttribute("width")) + gap, gap);
  const height = Math.max(...drawings.map((svg) => Number(svg.getAttribute("height")))) + 76;
  const text = { "font-family": "system-ui, sans-serif", fill: ink };
  const figure = shape("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  figure.append(shape("rect", { width, height, fill: background }));
  const heading = shape("text", { x: gap, y: 26, "font-size": 16, "font-weight": 600, ...text });
  heading.textContent = title;
  const footer = shape("text", { x: gap, y: height - 14, "font-size": 11, ...text });
  footer.textContent = caption;
  let x = gap;
  for (const svg of drawings) {
    const group = shape("g", { transform: `translate(${x} 40)` });
    group.append(...Array.from(svg.childNodes, styledClone).filter(Boolean));
    figure.append(group);
    x += Number(svg.getAttribute("width")) + gap;
  }
  figure.append(heading, footer);
  return new XMLSerializer().serializeToString(figure);
}

const STYLES = [
  "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity",
  "font-size", "font-weight", "font-family", "text-anchor", "visibility", "paint-order", "stroke-linejoin",
  "stroke-linecap",
];

function styledClone(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return null;
  if (node.classList.contains("handles")) return null;
  const style = getComputedStyle(node);
  if (style.display === "none") return null;
  const clone = node.cloneNode(false);
  for (const name of ["class", "tabindex", "role", "aria-label", "style"]) clone.removeAttribute(name);
  for (const name of STYLES) clone.setAttribute(name, style.getPropertyValue(name));
  for (const child of node.childNodes) {
    const copy = child.nodeType === Node.TEXT_NODE ? child.cloneNode() : styledClone(child);
    if (copy) clone.append(copy);
  }
  return clone;
}
