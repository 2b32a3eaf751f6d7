// Measures the pages in the frames of this document from outside: the frames themselves run no script.
// Puts one JSON text into the body, an entry a frame. Lengths are CSS pixels, rectangles [left, top, right,
// bottom] from the upper left corner of the slide.
addEventListener("load", () => {
  const TEXT = "h1,h2,h3,p,li,th,td";
  const rectangle = (r) => [r.left, r.top, r.right, r.bottom].map((side) => Math.round(side * 100) / 100);

  function measure(frame) {
    const page = frame.contentDocument, view = frame.contentWindow;
    const style = (element) => view.getComputedStyle(element);
    const paint = (element) => style(element).backgroundColor;
    // What an element paints at a point: its border where it has one there, else its background.
    function painted(element, x, y) {
      const s = style(element), box = element.getBoundingClientRect();
      if (y < box.top + parseFloat(s.borderTopWidth)) return s.borderTopColor;
      if (y >= box.bottom - parseFloat(s.borderBottomWidth)) return s.borderBottomColor;
      if (x < box.left + parseFloat(s.borderLeftWidth)) return s.borderLeftColor;
      if (x >= box.right - parseFloat(s.borderRightWidth)) return s.borderRightColor;
      return s.backgroundColor;
    }
    // As on our side: a line break counts as a space.
    const read = (node) => node.localName === "br" ? " " : node.data ?? [...node.childNodes].map(read).join("");
    const owners = [...page.body.querySelectorAll(TEXT)];
    const canvas = [paint(page.documentElement), paint(page.body)];
    // What is painted at a point, the uppermost first, over and under an element.
    function layers(x, y, element) {
      const found = page.elementsFromPoint(x, y);
      let cut = element ? found.indexOf(element) : 0;
      // Text that stands out of its element does not hit it: it is painted on what holds the element.
      if (cut < 0) cut = found.findIndex((e) => e.contains(element));
      if (cut < 0) cut = found.length;
      const colours = found.map((e, at) => at < cut ? painted(e, x, y) : paint(e));
      return { over: colours.slice(0, cut), under: [...colours.slice(cut), ...canvas] };
    }
    // The block boxes that must hold a text: up to the body, or to a box taken out of the flow.
    function holders(element) {
      const found = [];
      for (let e = element; e && e !== page.body; e = e.parentElement) {
        if (style(e).display !== "inline") found.push(rectangle(e.getBoundingClientRect()));
        if (style(e).position === "absolute") break;
      }
      return found;
    }
    function text(node) {
      const element = node.parentElement, range = page.createRange();
      range.selectNodeContents(node);
      const lines = [...range.getClientRects()].filter((r) => r.width > 0 && r.height > 0).map(rectangle);
      const points = new Set();  // as text: most of a line's points say the same
      for (const [left, top, right, bottom] of lines)
        for (let across = 0.05; across < 1; across += 0.1)
          for (const down of [0.3, 0.5, 0.7]) {
            const x = left + across * (right - left), y = top + down * (bottom - top);
            if (x >= 0 && x < 1280 && y >= 0 && y < 720) points.add(JSON.stringify(layers(x, y, element)));
          }
      return {
        text: node.data, owner: owners.indexOf(element.closest(TEXT)), lines, holders: holders(element),
        points: [...points].map((told) => JSON.parse(told)),
        size: parseFloat(style(element).fontSize), bold: Number(style(element).fontWeight) >= 700,
        colour: style(element).color,
      };
    }
    const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), texts = [], grid = [];
    while (walker.nextNode()) if (walker.currentNode.data.trim()) texts.push(text(walker.currentNode));
    for (let x = 40; x < 1280; x += 80) for (let y = 40; y < 720; y += 80) grid.push(layers(x, y, null).under);
    return {
      texts, grid, body: rectangle(page.body.getBoundingClientRect()),
      boxes: [...page.body.querySelectorAll("*")].map((e) => rectangle(e.getBoundingClientRect())),
      owners: owners.map((e) => ({ tag: e.localName, text: read(e) })),
      scroll: [page.documentElement.scrollWidth, page.documentElement.scrollHeight],
    };
  }
  const found = [...document.querySelectorAll("iframe")].map(measure);
  const pre = document.createElement("pre");
  pre.id = "measured";
  pre.textContent = JSON.stringify(found);
  document.body.replaceChildren(pre);
});
