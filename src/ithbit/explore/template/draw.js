"use strict";
// Pictures made of small squares, one pixel each; the style sheet makes them large.
const drawing = (() => {
  let colours;
  const channels = (name) => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  };
  // To be called whenever the page turns light or dark.
  const readColours = () => {
    const names = { zero: "--card", plus: "--plus", minus: "--minus", weight: "--weight", asked: "--accent", good: "--good", bad: "--bad", ink: "--ink" };
    colours = Object.fromEntries(Object.entries(names).map(([key, name]) => [key, channels(name)]));
  };

  const paint = (canvas, width, height, colourAt) => {
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    const image = new ImageData(width, height), pixels = image.data;
    for (let y = 0, p = 0; y < height; y++)
      for (let x = 0; x < width; x++, p += 4) {
        const [colour, share] = colourAt(x, y);
        for (let i = 0; i < 3; i++) pixels[p + i] = colours.zero[i] + (colour[i] - colours.zero[i]) * share;
        pixels[p + 3] = 255;
      }
    canvas.getContext("2d").putImageData(image, 0, 0);
  };

  const most = (data) => {
    let size = 0;
    for (let i = 0; i < data.length; i++) size = Math.max(size, Math.abs(data[i]));
    return size || 1;
  };
  // Numbers of either sign, with a square root so that small ones are seen; `at(x, y)` is the place in
  // `data` of a square. Gives the largest size.
  const signed = (canvas, width, height, data, at) => {
    const scale = most(data);
    paint(canvas, width, height, (x, y) => {
      const value = data[at(x, y)];
      return [value < 0 ? colours.minus : colours.plus, Math.sqrt(Math.abs(value) / scale)];
    });
    return scale;
  };
  // Weights from 0 to 1, likewise.
  const weights = (canvas, width, height, data, at) =>
    paint(canvas, width, height, (x, y) => [colours.weight, Math.sqrt(Math.max(0, data[at(x, y)]))]);

  // A bar for each number, from below; those below zero in the other colour.
  const LEVELS = 32;
  const bars = (canvas, values, highest, marked) =>
    paint(canvas, values.length, LEVELS, (x, y) => {
      const value = values[x], filled = (LEVELS - y - 0.5) / LEVELS < Math.abs(value) / highest;
      return [x === marked ? colours.asked : value < 0 ? colours.minus : colours.weight, filled ? 1 : 0];
    });

  // One square a token: bits dark or light, the index and the end in their own colour.
  const strip = (canvas, values) =>
    paint(canvas, values.length, 1, (x) => (values[x] === null ? [colours.asked, 0.5] : [colours.ink, values[x] ? 0.85 : 0.12]));
  // One square a place: right or wrong, the stronger the surer.
  const verdicts = (canvas, margins) =>
    paint(canvas, margins.length, 1, (x) => {
      const margin = margins[x];
      if (margin === undefined) return [colours.ink, 0.08];
      return [margin > 0 ? colours.good : colours.bad, margin > 0 ? 0.25 + 0.5 * Math.min(1, margin / 10) : 1];
    });
  return { readColours, signed, weights, bars, strip, verdicts, most };
})();
