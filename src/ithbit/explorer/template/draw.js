"use strict";
// Pictures made of small squares, one pixel each; the style sheet makes them large.
const drawing = (() => {
  const SHADES = 256, LEVELS = 32;
  const NAMES = { plus: "--plus", minus: "--minus", weight: "--weight", asked: "--accent", good: "--good", bad: "--bad", ink: "--ink" };
  let ramps; // for each colour its shades from the card's own, as pixels
  // To be called whenever the page turns light or dark.
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    const channels = (name) => [1, 3, 5].map((at) => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16));
    const zero = channels("--card");
    const ramp = (name) => {
      const full = channels(name), bytes = new Uint8ClampedArray(4 * SHADES);
      for (let k = 0; k < SHADES; k++)
        bytes.set([...zero.map((from, i) => from + ((full[i] - from) * k) / (SHADES - 1)), 255], 4 * k);
      return new Uint32Array(bytes.buffer);
    };
    ramps = Object.fromEntries(Object.entries(NAMES).map(([key, name]) => [key, ramp(name)]));
  };
  const shade = (ramp, share) => ramp[Math.round((SHADES - 1) * Math.min(1, Math.max(0, share)))];

  const blank = (canvas, width, height) => {
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    if (canvas.image?.width !== width || canvas.image.height !== height) canvas.image = new ImageData(width, height);
    return new Uint32Array(canvas.image.data.buffer);
  };
  const show = (canvas) => canvas.getContext("2d").putImageData(canvas.image, 0, 0);
  const paint = (canvas, width, height, pixelAt) => {
    const pixels = blank(canvas, width, height);
    for (let y = 0, p = 0; y < height; y++) for (let x = 0; x < width; x++, p++) pixels[p] = pixelAt(x, y);
    show(canvas);
  };

  const most = (data) => {
    let size = 0;
    for (let i = 0; i < data.length; i++) size = Math.max(size, Math.abs(data[i]));
    return size || 1;
  };
  // Numbers of either sign, the square in column x and row y being data[x * across + y * down]; by
  // their square roots, so that small ones are seen. Gives the largest size.
  const signed = (canvas, width, height, data, across, down) => {
    const scale = most(data), pixels = blank(canvas, width, height), { plus, minus } = ramps;
    for (let y = 0, p = 0; y < height; y++)
      for (let x = 0; x < width; x++, p++) {
        const value = data[x * across + y * down];
        pixels[p] = value < 0 ? shade(minus, Math.sqrt(-value / scale)) : shade(plus, Math.sqrt(value / scale));
      }
    show(canvas);
    return scale;
  };
  // Weights from 0 to 1, likewise.
  const weights = (canvas, width, height, data, across, down) => {
    const pixels = blank(canvas, width, height), { weight } = ramps;
    for (let y = 0, p = 0; y < height; y++)
      for (let x = 0; x < width; x++, p++) pixels[p] = shade(weight, Math.sqrt(data[x * across + y * down]));
    show(canvas);
  };
  // A bar for each number, from below; those below zero in the other colour.
  const bars = (canvas, values, highest, marked) =>
    paint(canvas, values.length, LEVELS, (x, y) => {
      const value = values[x], filled = (LEVELS - y - 0.5) / LEVELS < Math.abs(value) / highest;
      return shade(x === marked ? ramps.asked : value < 0 ? ramps.minus : ramps.weight, filled ? 1 : 0);
    });
  // One square a token: bits dark or light, the index and the end in their own colour.
  const strip = (canvas, values) =>
    paint(canvas, values.length, 1, (x) => (values[x] === null ? shade(ramps.asked, 0.5) : shade(ramps.ink, values[x] ? 0.85 : 0.12)));
  // One square a margin: right or wrong, the stronger the surer; faint where it is not known yet.
  const verdicts = (canvas, margins, width) =>
    paint(canvas, width, margins.length / width, (x, y) => {
      const margin = margins[y * width + x];
      if (margin === undefined) return shade(ramps.ink, 0.08);
      return margin > 0 ? shade(ramps.good, 0.25 + 0.05 * Math.min(10, margin)) : shade(ramps.bad, 1);
    });
  return { readColours, signed, weights, bars, strip, verdicts, most };
})();
